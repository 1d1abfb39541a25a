"""Headrace's innermost loops in C. Programs do not use this package: Headrace uses it if it is installed.

`HEADRACE_ACCEL=0` in the environment disables it.
"""

from __future__ import annotations

import os
from typing import Final

from headrace_accel import _kernels

VERSION: Final = "0.1.0"
API_VERSION: Final = 4
"""The version of the functions' interface. It grows with each change of arguments or results. Headrace uses only the
version that it knows."""

enabled: Final = os.environ.get("HEADRACE_ACCEL", "1") != "0"
kernels = _kernels
