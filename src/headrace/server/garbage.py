"""The garbage collection of a server process.

A full collection of CPython examines every object. With 5,000 partitions, 2,000 topics and 1,000 groups one collection
took 150 ms, and any request could start it. Here each full collection examines only the objects that were made since
the previous one, because the surviving objects are frozen (`gc.freeze`).

Reference counts free the objects of a broker: objects of a connection or a request form no reference cycles when they
end (`tests/conformance/server/test_garbage.py`). If collections find much garbage all the same, there may also be
garbage among the frozen objects. Then the next full collection examines all objects.
"""

from __future__ import annotations

import gc
from typing import Any, Final

_OLDEST: Final = 2
_OFTEN: Final = 4
"""The number of collections of the middle generation between two full ones. Fewer mean smaller full collections."""
_MUCH_GARBAGE: Final = 500_000
"""The number of freed objects, of some hundred bytes each, after which a full collection examines all objects."""


class FullCollections:
    """Freezes the objects that survive a full collection. A process has at most one instance."""

    def __init__(self, *, much_garbage: int = _MUCH_GARBAGE) -> None:
        self._much_garbage = much_garbage
        self._found = 0
        """The number of objects freed since the last collection that examined all objects."""
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Freeze all objects now, and after each full collection the surviving ones."""
        gc.freeze()
        gc.set_threshold(*self._thresholds[:2], _OFTEN)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Restore Python's own settings."""
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
