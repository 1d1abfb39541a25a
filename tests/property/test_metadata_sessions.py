"""Sessions on one content of metadata: whatever the network does, every reader follows the same history.

Commits are late, lost, void and doubled; connections break; sessions expire and are renewed. The history is what was
applied, as a session without a network sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.deferred import Deferred
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import Fault, SimulatedMetadataStore, Timeline
from headrace.ports import (
    Check,
    CommitOutcome,
    Delete,
    MetadataBatch,
    MetadataEntry,
    Put,
    SessionLost,
    Unknown,
)
from tests.fixtures.metadata_stores import Clock, Seen

KEPT = 6
TIMEOUT_MS = 40
FAULTS: list[Fault] = [
    "none",
    "none",
    "none",
    "unavailable",
    "unknown and void",
    "unknown and applied",
    "unknown and late",
    "doubled",
]
numbers = st.integers(0, 2)
keys = st.sampled_from("abcd")


@dataclass
class Client:
    """A broker's side of a session."""

    store: SimulatedMetadataStore
    seen: Seen = field(default_factory=Seen)
    delay_ms: int = 0
    position: int = 0
    """The number of commits in the history that the reader has applied."""
    lease_ms: int = 0


@dataclass
class Sent:
    """A commit that a client has sent. Its value is used once."""

    value: bytes
    outcome: Deferred[CommitOutcome]
    may_repeat: bool


class SessionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.timeline = Timeline(self.clock)
        self.content = MemoryMetadata(KEPT)
        self.states: list[dict[str, MetadataEntry]] = [{}]
        """The content after each commit."""
        self.values: list[bytes] = []
        """The values in the order in which they were applied."""
        MemoryMetadataStore(self.content).watch(self._record)
        self.sent: list[Sent] = []
        self.clients: list[Client] = []
        for _ in range(3):
            self._connect()

    def _connect(self) -> None:
        delays: list[Client] = []
        store = SimulatedMetadataStore(
            self.content,
            self.timeline,
            delay_ms=lambda: delays[0].delay_ms if delays else 0,
            timeout_ms=TIMEOUT_MS,
        )
        client = Client(store)
        delays.append(client)
        store.watch(client.seen)
        self.clients.append(client)

    def _record(self, batch: MetadataBatch) -> None:
        if batch.snapshot:
            return
        state = dict(self.states[-1])
        for entry in batch.puts:
            state[entry.key] = entry
            self.values.append(entry.value)
        for key in batch.deletes:
            del state[key]
        self.states.append(state)

    @rule(
        number=numbers,
        key=keys,
        kind=st.sampled_from(["put", "put", "ephemeral", "checked"]),
        fault=st.sampled_from(FAULTS),
    )
    def put(self, number: int, key: str, kind: str, fault: Fault) -> None:
        client = self.clients[number]
        client.store.faults = [fault]
        entry = client.seen.known.get(key)
        check = Check(key, "absent" if entry is None else entry.version)
        value = b"%d" % len(self.sent)
        outcome = client.store.commit(
            [check] if kind == "checked" else [], [Put(key, value, ephemeral=kind == "ephemeral")]
        )
        self.sent.append(Sent(value, outcome, may_repeat=fault == "doubled" and kind != "checked"))

    @rule(number=numbers, key=keys)
    def delete(self, number: int, key: str) -> None:
        self.clients[number].store.commit([], [Delete(key)])

    @rule(ms=st.integers(1, 60))
    def advance(self, ms: int) -> None:
        self.clock.run(self.timeline, self.clock.now_ms + ms)

    @rule(number=numbers, ms=st.sampled_from([0, 0, 1, 5, 30]))
    def change_delay(self, number: int, ms: int) -> None:
        self.clients[number].delay_ms = ms

    @rule(number=numbers)
    def break_or_repair_connection(self, number: int) -> None:
        store = self.clients[number].store
        store.down = not store.down

    @rule(number=numbers)
    def lose_session(self, number: int) -> None:
        self.clients[number].store.lose_session()

    @rule(number=numbers)
    def renew(self, number: int) -> None:
        self.clients[number].store.renew()

    @rule(number=numbers)
    def land(self, number: int) -> None:
        self.clients[number].store.land()

    @rule(number=numbers)
    def process_ends(self, number: int) -> None:
        """End the process of a broker, and start another one."""
        self.clients.pop(number).store.close()
        self._connect()

    @precondition(lambda self: self.sent)
    @rule()
    def settle(self) -> None:
        """Repair all connections, and let all messages arrive."""
        for client in self.clients:
            client.store.down = False
            client.store.faults = []
            client.store.land()
            while isinstance(client.store.wait(client.store.commit([], [])), SessionLost):
                client.store.wait(client.store.renew())
        self.advance(1_000)
        for client in self.clients:
            assert client.seen.known == self.states[-1]
        for sent in self.sent:
            assert sent.outcome.done

    @invariant()
    def every_reader_is_at_a_commit_of_the_history_and_moves_forward(self) -> None:
        for client in self.clients:
            known = client.seen.known
            client.position = next(
                n for n in range(client.position, len(self.states)) if self.states[n] == known
            )

    @invariant()
    def an_outcome_says_how_often_a_commit_was_applied(self) -> None:
        for sent in self.sent:
            if not sent.outcome.done:
                continue
            times, outcome = self.values.count(sent.value), sent.outcome.value
            if isinstance(outcome, dict):
                assert 1 <= times <= 1 + sent.may_repeat
            elif isinstance(outcome, Unknown):
                assert times <= 1 + sent.may_repeat
            else:
                assert times == 0

    @invariant()
    def the_content_is_the_end_of_the_history(self) -> None:
        assert {entry.key: entry for entry in self.content.entries()} == self.states[-1]

    @invariant()
    def a_lease_only_grows_in_a_session(self) -> None:
        for client in self.clients:
            acknowledged_ms = client.store.session.acknowledged_ms
            assert acknowledged_ms is not None
            assert client.lease_ms <= acknowledged_ms <= self.clock.now_ms
            client.lease_ms = acknowledged_ms


SessionsMachine.TestCase.settings = settings(stateful_step_count=40)
TestSessionsMachine = SessionsMachine.TestCase
