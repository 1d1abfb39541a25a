"""The largest offset, and the largest span of offsets in a segment."""

from __future__ import annotations

from typing import Final

from headrace.types import MAX_INT64

MAX_OFFSET: Final = MAX_INT64
"""The largest offset. Stands for "no offset" where the smallest of several offsets is looked for."""
MAX_OFFSET_SPAN: Final = 2**31 - 1
"""The largest difference between the last offset and the base offset of a segment: Kafka stores it in four bytes."""
