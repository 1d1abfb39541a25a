"""Headrace's innermost loops in C. Nothing here is for programs: Headrace finds it by itself when it is installed.

`HEADRACE_ACCEL=0` in the environment switches it off.
"""

from __future__ import annotations

import os
from typing import Final

from headrace_accel import _kernels

VERSION: Final = "0.1.0"
API_VERSION: Final = 4
"""Goes up whenever a function changes what it takes or returns: Headrace uses only the version that it knows."""

enabled: Final = os.environ.get("HEADRACE_ACCEL", "1") != "0"
kernels = _kernels
