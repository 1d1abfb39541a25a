"""One broker, its clock, and all its clients in this process, under one lock: the target of local drivers.

Nothing here runs by itself but the background, if a client asks for it. Whoever is inside a call and has to wait lets
everything happen that is due (`pump`): first to the clients, so that their heartbeats are ahead of the broker's
time-outs however long the program did not call in, then to the broker, then group commits, in line. When the broker
is served to other processes as well, `listening` has the rules for its thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.broker import Broker
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.session import Session
from headrace.clients.arguments import checked
from headrace.clients.drivers.common import report
from headrace.clients.drivers.interrupts import GuardedCondition, uninterrupted
from headrace.clients.drivers.local_target import LocalClient
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Call
from headrace.clients.network.versions import choose_version, our_range, version_table
from headrace.clock import SteadyClock
from headrace.config.listeners import parse_listener, parse_protocol_map
from headrace.core.deferred import Deferred
from headrace.errors import ApiError, ClosedError, ErrorCode, HeadraceError, TransportError
from headrace.forking import FORKED, disown_in_children
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.fetch import FetchResponse
from headrace.streams.clock import Clock, ManualClock
from headrace.streams.given import TopicObjects
from headrace.streams.lines import Line, Lines, OnDone, WaitingCall
from headrace.types import FileRange

if TYPE_CHECKING:
    from headrace.clients.partitioners import Partitioner
    from headrace.registers import Named
    from headrace.streams.listening import LoopbackListener
    from headrace.streams.partitioners import TopicPartitioners

_PEER: Final = "the embedded broker"
_NEVER_MS: Final = 1 << 62
_LONGEST_WAIT_MS: Final = 60_000
FAULT_PAUSE_S: Final = 0.1
"""How long the background does nothing after a fault that would have ended it."""
JOIN_S: Final = 5.0
"""How long `close` waits for a callback that the background is inside of."""


class World:
    """A broker that is open, and who uses it in this process."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock | None = None,
        *,
        listener: tuple[str, int] = ("127.0.0.1", 9092),
        objects: TopicObjects | None = None,
        partitioners: TopicPartitioners | None = None,
        owner: object = None,
    ) -> None:
        """Take over an open broker.

        Args:
            broker: The broker. Nobody else may use it without holding `condition`.
            clock: Its time, and its clients'; None is the process's.
            listener: What the broker tells clients of its address, unless it is configured.
            objects: What programs give to topics as classes and objects; None is nothing so far.
            partitioners: The partitioners that producers share; None gives each producer its own.
            owner: What has to stay alive as long as a client of the broker does.
        """
        self.broker = broker
        self.clock: Clock = SteadyClock() if clock is None else clock
        self.condition = GuardedCondition()
        self.objects = TopicObjects() if objects is None else objects
        self.owner = owner
        self._partitioners = partitioners
        self.stirred = False
        self.sleeps_until_ms = 0
        self._address = listener
        self.listener: LoopbackListener | None = None
        """The thread that serves the broker to other processes; None while nobody listens."""
        self._listening = threading.Lock()
        """Held while `listen` or `close` is at work on the listener, which needs the other lock."""
        self.clients: list[LocalClient] = []
        self._lines: dict[LocalClient, Lines] = {}
        self.apis_changed()
        self._pumping = False
        self._closed = False
        self._forked = False
        self._thread: threading.Thread | None = None
        disown_in_children(self)

    # For drivers

    @property
    def _port(self) -> World:
        """What clients use, as they find it at a `Broker`."""
        return self

    @property
    def virtual(self) -> bool:
        """Whether time stands still but for `wait`, which moves it."""
        return isinstance(self.clock, ManualClock) and self.clock.auto_advance

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock, so that nothing may happen in a thread that it did not start."""
        return isinstance(self.clock, ManualClock)

    def now_ms(self) -> int:
        """Return the time."""
        return self.clock.now_ms()

    def attach(self, client: LocalClient) -> None:
        """Take on a client.

        Raises:
            ClosedError: The broker is closed.
        """
        self._raise_if_closed()
        self.clients.append(client)
        self._lines[client] = Lines(Line)

    def detach(self, client: LocalClient) -> None:
        """Forget a client."""
        self.clients.remove(client)
        self._lines.pop(client, None)

    def start_background(self) -> None:
        """Let what is due happen also while no client is inside a call, if time passes by itself."""
        if self._thread is None and not self.virtual and not self._closed:
            self._thread = threading.Thread(
                target=_work_in_background,
                args=(weakref.ref(self), self.condition),
                name="headrace-embedded",
                daemon=True,
            )
            self._thread.start()

    def submit(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        """Hand a request to the broker; `on_done` is told the outcome at once or by `pump`.

        Args:
            client: Who asks.
            call: The request.
            on_done: Called with the answer, or with why there is none.

        Returns:
            What gives the answer up; None if it has been given.
        """
        if self._closed:
            on_done(ClosedError(f"{_PEER} is closed"))
            return None
        line = self._lines[client][call.channel]
        if not (line.session.busy or line.held):
            return self._handle(client, call, on_done)
        held = WaitingCall(call, on_done)
        line.held.append(held)
        return held.give_up

    def _handle(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        """Have the broker answer a request; see `submit`."""
        self.stirred = True
        request = call.request
        try:
            version = choose_version(
                request.API_KEY,
                our_range(request, call.max_version),
                self._versions.get(request.API_KEY),
                peer=_PEER,
            )
            header = RequestHeader(request.API_KEY, version, 0, client.client_id)
            reply = self.broker.handle(
                self._context(self._lines[client][call.channel].session, header), request
            )
        except Exception as error:  # noqa: BLE001 - as a server would, and it says what went wrong
            on_done(_failure(request, error))
        else:
            if isinstance(reply, Deferred):
                reply.on_done(lambda response: self._answered(client, on_done, request, response))
                return reply.cancel
            on_done(None if reply is None else _at_hand(reply))
        return None

    def share_partitioner(self, topic: str, named: Named, new: Partitioner) -> Partitioner:
        """Return the partitioner that all producers of this process use for a topic, if it has a state; else `new`."""
        found = self.broker.services.topics.get(topic)
        if self._partitioners is None or found is None:  # it may be created again by the record
            return new
        return self._partitioners.share(found, named, new)

    def pump(self) -> int | None:
        """Let everything happen that can happen now.

        Returns:
            When to call again at the latest; None when nothing depends on the time.
        """
        if self._pumping:
            return self.now_ms()
        self._pumping = True
        try:
            while True:
                self.stirred = False
                self._run_clients()
                if not self._closed:
                    self._run_broker()
                    self._let_on()
                if not self.stirred:
                    break
            if self.listener is not None:
                self.listener.used()
        finally:
            self._pumping = False
        return self._next_deadline_ms()

    def wait(self, until_ms: int | None) -> None:
        """Wait until a time, or until another thread has changed something; a clock by hand moves instead."""
        clock = self.clock
        if isinstance(clock, ManualClock) and clock.auto_advance and until_ms is not None:
            clock.advance_to(until_ms)
        else:
            self.condition.rest(self._seconds_until(until_ms))

    def apis_changed(self) -> None:
        """Take note of the versions that the broker speaks now; under the lock."""
        self._versions = version_table(
            (api.key, api.advertised.min, api.advertised.max) for api in self.broker.apis
        )

    # For the listener, under the lock

    @property
    def sync_stuck(self) -> bool:
        """Whether the listener has ended while a sync was still under way, so that the broker cannot be closed."""
        return self.listener is not None and self.listener.stuck

    @property
    def closed(self) -> bool:
        """Whether the broker takes no more calls."""
        return self._closed

    @uninterrupted
    def topic_changed(self, topic: str) -> None:
        """Have the clients that know a topic ask for its partitions again, in their own threads."""
        with self.condition:
            now_ms = self.now_ms()
            for client in self.clients:
                if topic in client.engine.state.metadata.topics:
                    client.engine.at(now_ms, partial(_look_again, client.engine, topic))
            self.stirred = True
            self.pump()

    def hand_over(self) -> None:
        """Wake the clients that have been answered; their threads go on with it."""
        self._let_on()
        if self.stirred:
            for client in self.clients:
                if client.inbox:
                    client.wake()

    # For the owner

    @uninterrupted
    @checked
    def advance(self, duration_ms: int) -> None:
        """Move a clock by hand, with everything that happens on the way."""
        clock = self.clock
        assert isinstance(clock, ManualClock), "only a ManualClock can be moved"
        with self.condition:
            end_ms = clock.now_ms() + duration_ms
            while (due_ms := self.pump()) is not None and due_ms <= end_ms:
                clock.advance_to(due_ms)
            clock.advance_to(end_ms)
            self.condition.notify_all()

    @uninterrupted
    @checked
    def listen(self, address: str = "127.0.0.1:0", *, insecure: bool = False) -> str:
        """Serve the broker over TCP too; see `Broker.listen`."""
        from headrace.server.listen import check_exposure  # noqa: PLC0415 - asyncio is slow to import
        from headrace.streams.listening import LoopbackListener  # noqa: PLC0415 - asyncio is slow to import

        config = self.broker.config
        wanted = parse_listener(address, parse_protocol_map(config.listener_security_protocol_map))
        check_exposure(wanted, config, insecure=insecure)
        with self._listening:
            self._raise_if_closed()
            if self.listener is None:
                listener = LoopbackListener(self, self.broker.services.journal)
                with self.condition:
                    self.listener = listener
                    listener.used()
            chosen = self.listener.open(wanted)
        self._address = chosen.host, chosen.port
        return str(chosen)

    @uninterrupted
    def close(self) -> None:
        """End background and listener, and fail calls from now on. The broker is its owner's to close."""
        with self.condition:
            self._closed = True
            for client in list(self.clients):
                client.target_closed()
                client.wake()
            self.condition.notify_all()
        if self._thread is not None and self._thread.ident != threading.get_ident():
            self._thread.join(JOIN_S)
        with self._listening:
            if self.listener is not None:
                self.listener.close()

    @property
    def disowned(self) -> bool:
        """Whether this is a forked child's copy of a broker that its parent has."""
        return self._forked

    def disown(self) -> None:
        """Become closed, in a forked child: the broker works on in the parent, with its files, threads and sockets."""
        self._closed = self._forked = True
        self.condition = GuardedCondition()  # the parent's may be held for ever
        self._listening = threading.Lock()
        self._thread = self.listener = None
        self._pumping = False

    # Within

    def _raise_if_closed(self) -> None:
        if self._forked:
            raise ClosedError(f"this embedded broker {FORKED}")
        if self._closed:
            raise ClosedError("the embedded broker is closed")

    def _let_on(self) -> None:
        """Hand over the requests that waited for the one before them."""
        for client, lines in list(self._lines.items()):
            for line in lines.values():
                while line.held and not line.session.busy:
                    self.stirred = True
                    held = line.held.popleft()
                    if not held.given_up:
                        held.cancel = self._handle(client, held.call, held.on_done)

    def _context(self, session: Session, header: RequestHeader) -> RequestContext:
        host, port = self._address
        return RequestContext(
            now_ms=self.now_ms(),
            header=header,
            client_address="embedded",
            listener_host=host,
            listener_port=port,
            session=session,
        )

    def _answered(
        self,
        client: LocalClient,
        on_done: OnDone,
        request: Message,
        response: Message | Exception | None,
    ) -> None:
        """Keep an answer, or what a step of its handler raised, until the broker has come to rest."""
        if isinstance(response, Exception):
            client.inbox.append((on_done, _failure(request, response)))
        else:
            client.inbox.append((on_done, None if response is None else _at_hand(response)))
        self.stirred = True

    def _run_clients(self) -> None:
        for client in list(self.clients):
            due_ms = client.engine.next_deadline_ms
            now_ms = self.now_ms()
            if not client.inbox and (due_ms is None or due_ms > now_ms):
                continue
            if client.runs_here:
                self._run_client(client, now_ms)
            client.wake()

    def _run_client(self, client: LocalClient, now_ms: int) -> None:
        engine = client.engine
        engine.now_ms = max(engine.now_ms, now_ms)
        self.stirred = True
        inbox = client.inbox
        while inbox:
            on_done, outcome = inbox.popleft()
            on_done(outcome)
        try:
            engine.advance(now_ms)
        except Exception as error:  # noqa: BLE001 - one callback's fault must not stop the others
            report(error)

    def _run_broker(self) -> None:
        broker, now_ms = self.broker, self.now_ms()
        due_ms = broker.next_deadline_ms
        if due_ms is not None and due_ms <= now_ms:
            broker.tick(now_ms)
        if self.listener is not None and not all(
            each.in_memory for each in broker.services.replicas.dirs
        ):
            return  # the listener's loop syncs and compacts
        while (batch := broker.start_sync()) is not None:
            failure = None
            try:
                batch.run()
            except OSError as error:
                failure = error
            broker.finish_sync(batch, failure, now_ms)
            if failure is not None:
                break
        if broker.compaction_due and (task := broker.start_compaction()) is not None:
            problem: Exception | None = None
            try:
                task.run()
            except Exception as error:  # noqa: BLE001 - the broker decides what it means
                problem = error
            broker.finish_compaction(task, problem, now_ms)

    def _next_deadline_ms(self) -> int | None:
        moments = [] if self._closed else [self.broker.next_deadline_ms]
        moments += [client.engine.next_deadline_ms for client in self.clients if client.runs_here]
        return min((at for at in moments if at is not None), default=None)

    def _seconds_until(self, until_ms: int | None) -> float:
        wait_ms = _LONGEST_WAIT_MS if until_ms is None else until_ms - self.now_ms()
        return max(0, min(wait_ms, _LONGEST_WAIT_MS)) / 1000

    def work(self) -> float | None:
        """Do in the background what is due, the lock held; return for how many seconds there is nothing more to do.

        None when the broker is closed.
        """
        self.sleeps_until_ms = 0
        while not self._closed:
            until_ms = self.pump()
            if not self._call_back():
                self.sleeps_until_ms = _NEVER_MS if until_ms is None else until_ms
                return self._seconds_until(until_ms)
        return None

    def _call_back(self) -> bool:
        """Run the callbacks of clients whose program is not inside a call; tell whether there were any."""
        due = [client for client in self.clients if client.runs_here and client.engine.callbacks]
        if not due:
            return False  # the lock is kept, so that nothing is begun unseen before the wait
        self.condition.release()
        try:
            for client in due:
                client.call_back()
        finally:
            self.condition.acquire()
        return True


def _work_in_background(reference: weakref.ref[World], condition: threading.Condition) -> None:
    """Work for a broker until it is closed, or nobody refers to it: a thread that waits does not."""
    with condition:
        while (world := reference()) is not None and not world.closed:
            try:
                wait_s = world.work()
            except BaseException as error:  # noqa: BLE001 - the thread is the only one of all clients
                report(error)
                wait_s = FAULT_PAUSE_S
            del world
            if wait_s is not None:
                condition.wait(wait_s)


def _failure(request: Message, error: Exception) -> HeadraceError:
    """Return what a client is told when the broker has raised an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, CloseConnection):
        return TransportError(f"{_PEER} closed the connection: {error.reason}")
    report(error)
    name = ApiKey(request.API_KEY).name
    return ApiError.for_code(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} failed: {error!r}")


def _at_hand(response: Message) -> Any:
    """Return a response whose records are bytes: a client does not read the broker's files."""
    if isinstance(response, FetchResponse):
        for topic in response.responses:
            for partition in topic.partitions:
                if isinstance(partition.records, FileRange):
                    partition.records = partition.records.read()
    return response


def _look_again(engine: Engine, topic: str) -> None:
    engine.state.stale_topics.add(topic)
    engine.notify()
