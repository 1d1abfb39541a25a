"""The real client code of a simulation run: pools and flows over the simulated network, and the processes with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from headrace.clients.config import ClientConfig
from headrace.clients.engine import Engine, Task
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.network.links import Link
from headrace.clients.network.pool import Pool
from headrace.errors import HeadraceError
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from tests.simulation.machine import ViolationError
from tests.simulation.network import OLD_PROTOCOL, Frame, Network, Wire, bytes_of


class Client:
    """One Kafka client of a process: the driver of its connection pool and of its engine."""

    def __init__(self, process: Process, config: ClientConfig, *, speaks_v2: bool = True) -> None:
        self.process = process
        self.network = process.network
        self.machine = process.network.machine
        self.speaks_v2 = speaks_v2
        chance = process.network.chance
        self.state = ClientState(
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )
        self.pool = Pool(
            self.state,
            config,
            self,
            now_ms=lambda: self.machine.now_ms,
            shuffle=chance.shuffle,
            on_error=process.fail,
        )
        self.engine = Engine(
            self.state,
            self.pool,
            now_ms=self.machine.now_ms,
            request_timeout_ms=config.request_timeout_ms,
            jitter=lambda: 0.8 + 0.4 * chance.random(),
        )
        self._wake_at_ms = 0
        process.clients.append(self)

    def offered(self, versions: ApiVersionsResponse) -> ApiVersionsResponse:
        """Return the versions that the broker offers to this client, which limit its transaction version."""
        if not self.speaks_v2:
            for row in versions.api_keys:
                row.max_version = min(row.max_version, OLD_PROTOCOL.get(row.api_key, 1 << 15))
            versions.finalized_features = [
                each for each in versions.finalized_features if each.name != "transaction.version"
            ]
        return versions

    # Time

    def run(self, what: Callable[[], object]) -> None:
        """Run an event of this client when its process is running."""
        self.process.run(partial(self._run, what))

    def _run(self, what: Callable[[], object]) -> None:
        self.engine.now_ms = max(self.engine.now_ms, self.machine.now_ms)
        what()
        self.follow()

    def follow(self) -> None:
        """Run what is due, and schedule the next deadline."""
        now_ms = self.machine.now_ms
        due_ms = self.pool.next_deadline_ms
        if due_ms is not None and due_ms <= now_ms:
            self.pool.expire(now_ms)
        self.engine.advance(now_ms)
        while self.engine.callbacks:
            self.engine.callbacks.popleft()()
        moments = [
            at
            for at in (self.pool.next_deadline_ms, self.engine.next_deadline_ms)
            if at is not None
        ]
        if moments:
            at_ms = max(min(moments), now_ms + 1)
            if self._wake_at_ms <= now_ms or at_ms < self._wake_at_ms:
                self._wake_at_ms = at_ms
                self.machine.schedule.at(at_ms, partial(self._wake, at_ms))

    def _wake(self, at_ms: int) -> None:
        if self._wake_at_ms == at_ms:
            self.run(lambda: None)

    # The pool's shell

    def open(self, link: Link) -> None:
        link.socket = wire = Wire(self.network, self, link, link.address)
        wire.connect()

    def flush(self, link: Link) -> None:
        output = b"".join(map(bytes_of, link.connection.take_output()))
        if not link.open or not output:
            if output:
                raise ViolationError("output before the connection is open")
            return
        link.connection.written()
        position = 0
        while position < len(output):
            size = int.from_bytes(output[position : position + 4], "big")
            content = output[position + 4 : position + 4 + size]
            link.socket.send(Frame(self, content))  # type: ignore[attr-defined]  # the shell's own: a wire
            position += 4 + size

    def authenticate(self, link: Link) -> None:
        raise AssertionError("no client of the simulation authenticates")

    def close(self, link: Link) -> None:
        link.socket.close()  # type: ignore[attr-defined]  # the shell's own: a wire

    def receive(self, link: Link, content: bytes) -> None:
        if link.lost is not None:
            return
        view = memoryview(content)
        while view:
            buffer = link.connection.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            link.connection.bytes_received(count)
        self.pool.received(link)


Step = tuple[Client, Flow[Any], int] | int
"""A step of a program: a client, its flow and the time-out in milliseconds; or a pause in milliseconds."""
Program = Generator[Step, Any, None]


class Process:
    """A process that runs a program with its clients. It can be paused or killed at any time."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.clients: list[Client] = []
        self.dead = False
        self.done = False
        self.on_done: Callable[[], object] = lambda: None
        self.paused_until_ms = 0
        self._backlog: deque[Callable[[], object]] = deque()
        self._program: Program | None = None
        network.processes.append(self)

    def start(self, program: Program) -> None:
        self._program = program
        self.run(lambda: self._go_on(None))

    def fail(self, error: Exception) -> None:
        raise ViolationError(f"{self.name}: {error!r}") from error

    def run(self, what: Callable[[], object]) -> None:
        """Run an event now, or after the pause, or never if the process was killed."""
        if self.dead:
            return
        if self.paused_until_ms > self.network.machine.now_ms:
            self._backlog.append(what)
        else:
            what()

    def pause(self, duration_ms: int) -> None:
        machine = self.network.machine
        machine.trace(f"{self.name}: is paused for {duration_ms} ms")
        self.paused_until_ms = machine.now_ms + duration_ms
        machine.schedule.at(self.paused_until_ms, self._wake)

    def _wake(self) -> None:
        if self.dead or self.paused_until_ms > self.network.machine.now_ms:
            return
        backlog, self._backlog = self._backlog, deque()
        while backlog and not self.dead:
            backlog.popleft()()

    def kill(self) -> None:
        self.network.machine.trace(f"{self.name}: is killed")
        self.dead = True
        for wire in list(self.network.wires):
            if wire.client is not None and wire.client.process is self:
                wire.close()

    # The program

    def _go_on(self, outcome: object) -> None:
        program = self._program
        assert program is not None
        try:
            step = (
                program.throw(outcome) if isinstance(outcome, Exception) else program.send(outcome)
            )
        except StopIteration:
            self.done = True
            self.on_done()
            return
        machine = self.network.machine
        if isinstance(step, int):
            machine.schedule.at(machine.now_ms + step, lambda: self.run(lambda: self._go_on(None)))
            return
        client, flow, timeout_ms = step
        client.engine.now_ms = max(client.engine.now_ms, machine.now_ms)
        client.engine.spawn(
            flow,
            timeout_ms=timeout_ms,
            on_done=self._ended,
            on_invoke=partial(_invoke, client.engine),
        )
        client.follow()

    def _ended(self, task: Task[Any]) -> None:
        if self.dead:
            return
        outcome = task.outcome
        if isinstance(outcome, BaseException) and not isinstance(outcome, HeadraceError):
            raise ViolationError(f"{self.name}: {outcome!r}") from outcome
        machine = self.network.machine
        machine.schedule.at(machine.now_ms, lambda: self.run(lambda: self._go_on(outcome)))


def _invoke(engine: Engine, task: Task[Any]) -> None:
    invocation = task.invocation
    assert invocation is not None
    engine.resume(task, invocation.function(*invocation.arguments))
