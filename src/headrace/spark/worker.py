"""What Spark's Python workers are spared."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"


def freeze_imports() -> None:
    """Have collections leave out, from now on, what this process has imported; once, and in Spark's workers only.

    Their daemon has each of them look through all of its objects after each task and each question: 30 ms of CPU with
    all that PySpark, pyarrow and Headrace consist of, which never is garbage. That is what thousands of rows take.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == _DAEMON and not gc.get_freeze_count():
        gc.freeze()
