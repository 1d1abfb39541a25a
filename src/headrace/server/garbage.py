"""When a server process looks for garbage, and at which objects.

A full collection of CPython looks at every object that was there before. With 5,000 partitions, 2,000 topics and 1,000
groups one took 150 ms, and any request could start it. Here each full collection looks at the objects that were made
since the previous one: those that survive are frozen (`gc.freeze`). Objects of a broker are freed by their reference
counts, for nothing of a connection or a request refers back to itself when it ends
(`tests/conformance/server/test_garbage.py`). In case a cycle gets through, the frozen objects are looked at again each
time that their number has doubled.
"""

from __future__ import annotations

import gc
from typing import Any, Final

_OLDEST: Final = 2
_AT_LEAST: Final = 500_000
"""Frozen objects below which their number does not count: a collection of so many takes some 50 ms."""


class FullCollections:
    """Freezes what survives a full collection. There may be one in a process."""

    def __init__(self, *, at_least: int = _AT_LEAST) -> None:
        self._at_least = at_least
        self._frozen = 0
        self._frozen_after_all = 0
        """How many there were after the last collection that looked at all objects."""

    def start(self) -> None:
        """Freeze what there is, and from now on what survives a full collection."""
        gc.freeze()
        self._frozen = self._frozen_after_all = gc.get_freeze_count()
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Leave it to Python again."""
        gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] != _OLDEST:
            return
        if not self._frozen:  # all objects were looked at
            gc.freeze()
            self._frozen = self._frozen_after_all = gc.get_freeze_count()
            return
        self._frozen += len(gc.get_objects(_OLDEST))
        if self._frozen > max(2 * self._frozen_after_all, self._at_least):
            gc.unfreeze()  # the next full collection looks at all
            self._frozen = 0
        else:
            gc.freeze()
