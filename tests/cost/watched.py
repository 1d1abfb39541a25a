"""Run a module in a process whose event loop measures itself: `python watched.py FILE -m MODULE ARGUMENTS`.

A step is the work of the event loop between two calls of the system's `select`. No other client is served during a
step. The steps are measured in CPU time of the loop's thread, so that other processes on the machine do not count. The
results are in FILE, which another process may read and set to zero at any time.
"""

from __future__ import annotations

import gc
import mmap
import resource
import runpy
import selectors
import sys
import threading
from time import thread_time_ns
from typing import Any, Final

SLOTS: Final = 8
"""The 64-bit numbers in the file: the longest step in ns, the number of steps, all steps in ns, the longest garbage
collection in ns, and unused ones."""
LONGEST, STEPS, TOTAL, GARBAGE = range(4)

ADDRESS_SPACE: Final = 4 << 30
"""The limit of the process's address space, in bytes.

A request that needs more fails before the machine runs out of memory.
"""

_numbers: memoryview
_began_ns = 0


class _Selector(selectors.DefaultSelector):
    """The system's selector, which measures the time from the end of one `select` to the start of the next."""

    _woke_ns = 0

    def select(self, timeout: float | None = None) -> Any:
        if self._woke_ns and threading.current_thread() is threading.main_thread():
            _count(thread_time_ns() - self._woke_ns)
        events = super().select(timeout)
        self._woke_ns = thread_time_ns()
        return events


def _count(took_ns: int) -> None:
    numbers = _numbers
    numbers[STEPS] += 1
    numbers[TOTAL] += took_ns
    numbers[LONGEST] = max(numbers[LONGEST], took_ns)


def _collected(phase: str, info: dict[str, int]) -> None:
    global _began_ns  # noqa: PLW0603 - there is one collector
    if phase == "start":
        _began_ns = thread_time_ns()
    else:
        took_ns = thread_time_ns() - _began_ns
        _numbers[GARBAGE] = max(_numbers[GARBAGE], took_ns)


def main() -> None:
    """Remove the own arguments, and run the module."""
    global _numbers  # noqa: PLW0603 - there is one event loop
    path, flag, module, *arguments = sys.argv[1:]
    assert flag == "-m", "usage: watched.py FILE -m MODULE ARGUMENTS"
    with open(path, "r+b") as file:  # noqa: PTH123 - before any import
        _numbers = memoryview(mmap.mmap(file.fileno(), 8 * SLOTS)).cast("q")
    selectors.DefaultSelector = _Selector  # type: ignore[misc]  # asyncio's loop makes an instance
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    gc.callbacks.append(_collected)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
