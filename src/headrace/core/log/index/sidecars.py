"""The kinds of files beside a segment."""

from __future__ import annotations

import re
from typing import Final

from headrace.core.log.files.paths import LOG_SUFFIX
from headrace.core.log.index.expiry_index import EXPIRY_INDEX
from headrace.core.log.index.sidecar import Sidecar
from headrace.core.log.index.sparse_index import SPARSE_INDEX
from headrace.core.log.index.transaction_index import TRANSACTION_INDEX

SIDECARS: Final[tuple[Sidecar, ...]] = (SPARSE_INDEX, TRANSACTION_INDEX, EXPIRY_INDEX)
"""All kinds. The files of a kind in this tuple are removed with their segment, also after a crash."""

_SUFFIXES: Final = (LOG_SUFFIX, *(sidecar.suffix for sidecar in SIDECARS))
SEGMENT_FILE: Final = re.compile(rf"(\d{{20}})({'|'.join(map(re.escape, _SUFFIXES))})")
"""The names of a segment's files. Groups: the base offset in twenty digits, the suffix."""
