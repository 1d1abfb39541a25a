"""What Spark's Python workers are spared."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"
_calls = itertools.count(1)


def freeze_imports() -> None:
    """Have collections leave out what this process has imported; to be called when a task begins, or a question.

    The daemon of Spark's workers has each of them look through all of its objects after each task and each question:
    30 ms of CPU with all that PySpark, pyarrow and Headrace consist of, as long as thousands of rows take. None of it
    ever is garbage. It is done once, when the second task begins: then the first has imported everything, and what it
    left was collected. Other processes are left alone.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == _DAEMON and next(_calls) == 2:
        gc.freeze()
