"""`partition.gaps`: a file without content, which exists if offsets may be missing in the last segment of a log.

A follower appends the batches of its leader as they are. Where the leader has compacted, offsets are missing. In a log
without this file a missing offset in the last segment is damage. The file is created before the first such batch is
written, and its name is synced before the batch counts as synced.
"""

from __future__ import annotations

from typing import Final

GAPS_FILE: Final = "partition.gaps"
