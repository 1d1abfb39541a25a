"""When a server process looks for garbage, and at which objects.

A full collection of CPython looks at every object that was there before. With 5,000 partitions, 2,000 topics and 1,000
groups one took 150 ms, and any request could start it. Here each full collection looks at the objects that were made
since the previous one: those that survive are frozen (`gc.freeze`). Objects of a broker are freed by their reference
counts, for nothing of a connection or a request refers back to itself when it ends
(`tests/conformance/server/test_garbage.py`). If collections find much garbage all the same, there may be some among the
frozen objects, too; then the next full collection looks at all of them.
"""

from __future__ import annotations

import gc
from typing import Any, Final

_OLDEST: Final = 2
_OFTEN: Final = 4
"""Collections of the middle generation between two full ones; the fewer, the less there is to look at."""
_MUCH_GARBAGE: Final = 500_000
"""Objects, some hundred bytes each."""


class FullCollections:
    """Freezes what survives a full collection. There may be one in a process."""

    def __init__(self, *, much_garbage: int = _MUCH_GARBAGE) -> None:
        self._much_garbage = much_garbage
        self._found = 0
        """Objects that the collections have freed since the last one that looked at all objects."""
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Freeze what there is, and from now on what survives a full collection."""
        gc.freeze()
        gc.set_threshold(*self._thresholds[:2], _OFTEN)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Leave it to Python again."""
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop":
            return
        self._found += info["collected"]
        if info["generation"] != _OLDEST:
            return
        if self._found > self._much_garbage:
            self._found = 0
            gc.unfreeze()
        else:
            gc.freeze()
