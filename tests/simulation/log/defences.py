"""Defences of the log that can be switched off, to test that a run finds each missing defence.

Each entry has the patches that switch a defence off. The key names the defence.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from headrace.core.log.append.log_files import LogFiles
from headrace.core.log.append.truncatable_files import TruncatableFiles
from headrace.core.log.cleaning.cleaner import LogCleaner
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.producers.snapshots import ProducerSnapshots
from headrace.core.log.recovery.cached_state import CachedState
from headrace.core.log.upkeep.high_watermarks import HighWatermarks
from headrace.core.log.upkeep.log_offsets import LogOffsets
from tests.fixtures.crash_files import CrashFile, CrashFileSystem


def _nothing(*_: Any, **__: Any) -> None:
    return None


_truncate = TruncatableFiles.truncate


def _sync_counts_fully(self: TruncatableFiles, *arguments: Any) -> None:
    task = self._task
    end_offset = 0 if task is None else task.end_offset
    _truncate(self, *arguments)
    if task is not None:
        task.end_offset = end_offset


def _without_sync(self: TruncatableFiles, *arguments: Any) -> None:
    with patch.object(CrashFile, "sync", _nothing):
        _truncate(self, *arguments)


def _without_sync_of_names(self: TruncatableFiles, *arguments: Any) -> None:
    with patch.object(CrashFileSystem, "sync_directory", _nothing):
        _truncate(self, *arguments)


DEFENCES: dict[str, list[Any]] = {
    "the recovery point is lowered before a truncation": [
        patch.object(LogOffsets, "lower", _nothing)
    ],
    "the clean offset is lowered before a truncation": [
        patch.object(LogCleaner, "truncated", _nothing)
    ],
    "the leader epochs are cut before the batches": [
        patch.object(LogFiles, "save_epochs", _nothing)
    ],
    "files that describe more than remains are removed": [
        patch.object(TruncatableFiles, "_remove_caches", _nothing)
    ],
    "snapshots above the new end are removed": [
        patch.object(ProducerSnapshots, "remove_above", _nothing)
    ],
    "a sync in flight counts up to the new end only": [
        patch.object(TruncatableFiles, "truncate", _sync_counts_fully)
    ],
    "the cut is synced": [patch.object(TruncatableFiles, "truncate", _without_sync)],
    "removed segments are removed durably": [
        patch.object(TruncatableFiles, "truncate", _without_sync_of_names)
    ],
    "a truncation keeps producers whose batches are deleted": [
        patch.object(ProducerStates, "keep_deleted", _nothing)
    ],
    "a start looks for markers that are not committed": [
        patch.object(CachedState, "find_undecided", _nothing)
    ],
    "a high watermark above the log end is forgotten at a start": [
        patch.object(HighWatermarks, "opened", _nothing)
    ],
    "gaps are legal in the last segment of a log that may have them": [
        patch.object(TruncatableFiles, "allow_gaps", _nothing)
    ],
}


def without(defence: str) -> AbstractContextManager[object]:
    """Return a context manager that switches one defence off."""
    stack = ExitStack()
    for each in DEFENCES[defence]:
        stack.enter_context(each)
    return stack
