"""Garbage collection in Spark's Python workers."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"
_calls = itertools.count(1)


def freeze_imports() -> None:
    """Exclude the imported modules from garbage collections. Tasks and driver calls begin with this function.

    The daemon of Spark's workers runs a full collection in each worker after each task and each call. With the objects
    of PySpark, pyarrow and Headrace that takes 30 ms of CPU, as long as thousands of rows, although these objects are
    never garbage. The function freezes them once, when the second task begins: the first task has then imported all
    modules, and its own garbage has been collected. In other processes the function does nothing.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == _DAEMON and next(_calls) == 2:
        gc.freeze()
