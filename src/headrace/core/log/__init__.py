"""The partition log: everything that the rest of the program may use of it.

`PartitionLog` is the log of one partition, and `LogManager` has all logs of one data directory. The packages below are
private, and `lint-imports` checks that nothing outside imports them. From the bottom up:

* `files`: names and formats of small files, what a sync makes durable, and which errors of a disk are passing
* `index`: what lies in the files beside a segment, and the leader epochs of a log
* `segments`: one segment, the list of all segments of a log, and how compacted segments replace others
* `producers`: the state of idempotent and transactional producers
* `reading`: batches by offset and by time, and reads that leave records out
* `recovery`: opening a log after a shutdown or a crash
* `truncation`: removing the end of a log that its leader does not have
* `append`: the checks of a produced or replicated batch, and the files that take it
* `upkeep`: group commits, retention, checkpoints, deletion of directories
* `cleaning`: compaction, and removal of expired records
"""

from headrace.core.log.append.appendable_log import AppendInfo
from headrace.core.log.append.validation import check_produced, require_timely, validate_batch
from headrace.core.log.cleaning.cleaner import LogCleaner
from headrace.core.log.cleaning.rewriting import Rewriting
from headrace.core.log.config import LogConfig
from headrace.core.log.control_batch import MARKER_SIZE, Marker, build_marker, read_marker
from headrace.core.log.files.checkpoints import decode_checkpoint, encode_checkpoint
from headrace.core.log.files.disk_errors import (
    DESCRIPTORS,
    NO_SPACE,
    PROTECTED,
    could_not_open,
    is_passing,
)
from headrace.core.log.files.sync import RunTasks, SyncTask, run_in_turn
from headrace.core.log.index.aborted_transactions import AbortedTransaction
from headrace.core.log.log_manager import CLEAN_FILE, LogManager
from headrace.core.log.offsets import MAX_OFFSET
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.partition_spec import PartitionSpec
from headrace.core.log.producers.producer_entry import BatchEntry
from headrace.core.log.producers.producer_state import SEQUENCE_MASK
from headrace.core.log.reading.aborted_lookup import AbortedLookup
from headrace.core.log.reading.selective_read import SelectiveReading
from headrace.core.log.reading.time_lookup import lookup_newest, lookup_timestamp
from headrace.core.log.segments.open_segments import OpenSegments
from headrace.core.log.segments.segment import Segment
from headrace.core.log.shared import Shared
from headrace.core.log.upkeep.sync_batch import SyncBatch

__all__ = [
    "CLEAN_FILE",
    "DESCRIPTORS",
    "MARKER_SIZE",
    "MAX_OFFSET",
    "NO_SPACE",
    "PROTECTED",
    "SEQUENCE_MASK",
    "AbortedLookup",
    "AbortedTransaction",
    "AppendInfo",
    "BatchEntry",
    "LogCleaner",
    "LogConfig",
    "LogManager",
    "Marker",
    "OpenSegments",
    "PartitionLog",
    "PartitionSpec",
    "Rewriting",
    "RunTasks",
    "Segment",
    "SelectiveReading",
    "Shared",
    "SyncBatch",
    "SyncTask",
    "build_marker",
    "check_produced",
    "could_not_open",
    "decode_checkpoint",
    "encode_checkpoint",
    "is_passing",
    "lookup_newest",
    "lookup_timestamp",
    "read_marker",
    "require_timely",
    "run_in_turn",
    "validate_batch",
]
