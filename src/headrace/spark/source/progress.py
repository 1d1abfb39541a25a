"""The option `group`: commit a stream's progress to a consumer group, so that tools for groups show its lag.

The query never reads these offsets. Its checkpoint alone decides where it continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from headrace.clients.blocking import OffsetAndMetadata
from headrace.errors import ApiError, ConfigError, HeadraceError
from headrace.spark.source.source_client import SourceClient
from headrace.types import TopicPartition

log = logging.getLogger(__name__)

REPEAT_S: Final = 3600
"""Seconds after which unchanged offsets are committed again. Brokers delete committed offsets much later."""


class GroupProgress:
    """Commits a stream's progress as a group without members."""

    def __init__(self, client: SourceClient, group: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._committed: dict[TopicPartition, OffsetAndMetadata] | None = None
        self._at_s = 0.0

    def reached(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> None:
        """Commit offsets: the query has processed all records before these positions.

        Raises:
            ConfigError: A broker refuses the first commit with an error that is not retriable. Failures of later
                commits are only logged, because they are no reason to stop a query.
        """
        offsets = {
            each: OffsetAndMetadata(position, leader_epoch=epochs.get(each, -1))
            for each, position in positions.items()
        }
        now = self._clock()
        if not offsets or (offsets == self._committed and now - self._at_s < REPEAT_S):
            return
        try:
            self._client.commit(self._group, offsets)
        except ApiError as error:
            if self._committed is None and not error.code.retriable:
                raise ConfigError(
                    f"option group: offsets cannot be committed to {self._group}: {error}. Name a group without "
                    "members that this user may read, or leave the option out"
                ) from None
            log.warning("offsets were not committed to group %s: %s", self._group, error)
        except HeadraceError as error:
            log.warning("offsets were not committed to group %s: %s", self._group, error)
        else:
            self._committed, self._at_s = offsets, now
