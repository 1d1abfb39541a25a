"""Keeps metadata fresh: leaders as soon as they are known to be wrong, everything else at intervals."""

from __future__ import annotations

from collections.abc import Callable

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.subscribed_topics import SubscribedTopics
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import Flow
from headrace.errors import HeadraceError


class TopicWatch:
    """Requests metadata of topics, one request at a time."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        topics: SubscribedTopics,
        *,
        on_news: Callable[[], object],
        on_failure: Callable[[HeadraceError], object],
    ) -> None:
        """Prepare a watch.

        Args:
            engine: The consumer's engine.
            config: The consumer's configuration.
            topics: The topics to request, and for how long metadata is valid. While a relevant topic is stale, it is
                requested again soon. A topic that does not exist yet is stale, too.
            on_news: Called after a response.
            on_failure: Called with the error if there is no response.
        """
        self._engine = engine
        self._config = config
        self._topics = topics
        self._on_news = on_news
        self._on_failure = on_failure
        self._background = Background(engine)
        self._timer: Timer | None = None
        self._age_ms: int | None = None
        self._next_ms = 0
        self._failures = 0

    @property
    def stale(self) -> bool:
        """Whether the metadata of a relevant topic is stale."""
        return not self._engine.state.stale_topics.isdisjoint(self._topics.relevant())

    def watch(self) -> None:
        """Request metadata whenever it gets too old."""
        age_ms = self._topics.age_ms
        if self._age_ms != age_ms:
            self._age_ms = age_ms
            self._schedule(self._engine.now_ms + age_ms)

    def stop(self) -> None:
        """Stop the requests and the timer."""
        self._age_ms = None
        self._background.stop()
        if self._timer is not None:
            self._timer.cancel()

    def refresh(self) -> None:
        """Request metadata now, or at the end of the backoff after a request without success."""
        if self._background.running:
            return
        if self._engine.now_ms < self._next_ms:
            self._schedule(self._next_ms)
            return
        self._background.start(self._look(), self._ended, self._config.request_timeout_ms)

    def _look(self) -> Flow[None]:
        topics = yield from self._topics.question()
        yield from self._topics.create_own()
        yield from metadata.refresh(self._engine.state, topics)

    def _ended(self, outcome: object) -> None:
        unsettled = isinstance(outcome, HeadraceError) or self.stale
        self._failures = self._failures + 1 if unsettled else 0
        pause_ms = min(
            self._config.retry_backoff_ms << min(self._failures, 16),
            self._config.retry_backoff_max_ms,
        )
        self._next_ms = self._engine.now_ms + (pause_ms if unsettled else 0)
        if isinstance(outcome, HeadraceError):
            self._on_failure(outcome)
        else:
            self._on_news()
        if unsettled:
            self._schedule(self._next_ms)
        elif self._age_ms is not None:
            self._age_ms = self._topics.age_ms
            self._schedule(self._engine.now_ms + self._age_ms)

    def _schedule(self, when_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._engine.at(when_ms, self.refresh)
