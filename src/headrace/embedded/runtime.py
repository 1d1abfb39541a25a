"""The runtime of an embedded broker: the broker, its clock and all its clients in this process, under one lock.

Clients use it as their `LocalTarget`. It has no thread unless a client needs one (`background.py`). A client that waits
inside a call performs all due work first (`pump`), in this order:

1. The engines of the clients. So their heartbeats come before the broker expires sessions, even if the program has
   made no call for a long time.
2. The broker's timers.
3. Group commits, one after another.

`listening.py` has the rules for the thread that serves the broker to other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.broker import Broker
from headrace.broker.context import RequestContext
from headrace.broker.session import Session
from headrace.clients.arguments import checked
from headrace.clients.drivers.common import report
from headrace.clients.drivers.interrupts import GuardedCondition, uninterrupted
from headrace.clients.drivers.local_target import LocalClient
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Call
from headrace.clients.network.versions import choose_version, our_range, version_table
from headrace.clock import SteadyClock
from headrace.config import listeners
from headrace.deferred import Deferred
from headrace.embedded import background
from headrace.embedded.answers import PEER, failure, with_records_in_memory
from headrace.embedded.clock import Clock, ManualClock
from headrace.embedded.listener import ListenerThread
from headrace.embedded.request_lines import Line, Lines, OnDone, WaitingCall
from headrace.embedded.topic_objects import TopicObjects
from headrace.errors import ClosedError
from headrace.forking import FORKED, disown_in_children
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader
from headrace.types import NEVER_MS

if TYPE_CHECKING:
    from headrace.clients.partitioners import Partitioner
    from headrace.embedded.shared_partitioners import TopicPartitioners
    from headrace.registers import Named

_LONGEST_WAIT_MS: Final = 60_000
"""The longest time in milliseconds that a thread waits before it looks for due work again."""
JOIN_S: Final = 5.0
"""The longest wait of `close` for the background thread, in seconds: it may be inside a callback of the program."""


class BrokerRuntime:
    """An open broker with its clock and its clients in this process."""

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
            broker: The broker. Every use of it needs the lock `condition`.
            clock: The clock of the broker and its clients; None is the clock of the process.
            listener: The host and port in the broker's metadata, unless `advertised.listeners` is configured.
            objects: The classes and objects that programs give to topics; None if there are none yet.
            partitioners: The partitioners that producers share; None gives each producer a partitioner of its own.
            owner: An object that must stay alive as long as a client of the broker.
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
        self.listener: ListenerThread | None = None
        """The thread that serves the broker to other processes; None before the first `listen`."""
        self._listening = threading.Lock()
        """Held while `listen` or `close` changes the listener. They cannot hold `condition`: the listener needs it."""
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
    def _port(self) -> BrokerRuntime:
        """This object. Clients read the property of `Broker` with the same name."""
        return self

    @property
    def virtual(self) -> bool:
        """Whether only `wait` moves the clock."""
        return isinstance(self.clock, ManualClock) and self.clock.auto_advance

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock. Then events happen only in threads that the program started."""
        return isinstance(self.clock, ManualClock)

    def now_ms(self) -> int:
        """Return the time of the clock, in milliseconds since 1970."""
        return self.clock.now_ms()

    def attach(self, client: LocalClient) -> None:
        """Register a client.

        Raises:
            ClosedError: The broker is closed.
        """
        self._raise_if_closed()
        self.clients.append(client)
        self._lines[client] = Lines(Line)

    def detach(self, client: LocalClient) -> None:
        """Remove a client and its waiting requests."""
        self.clients.remove(client)
        self._lines.pop(client, None)

    def start_background(self) -> None:
        """Start a thread that performs due work while no client is inside a call. A virtual clock needs none."""
        if self._thread is None and not self.virtual and not self._closed:
            self._thread = background.start(self, self.condition)

    def submit(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        """Pass a request to the broker. `on_done` gets the outcome at once, or from `pump`.

        Args:
            client: The client that sends the request.
            call: The request.
            on_done: Called with the response, or with an error.

        Returns:
            A function that cancels the request; None if the request has its outcome.
        """
        if self._closed:
            on_done(ClosedError(f"{PEER} is closed"))
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
        """Have the broker handle a request, as `submit` describes."""
        self.stirred = True
        request = call.request
        try:
            version = choose_version(
                request.API_KEY,
                our_range(request, call.max_version),
                self._versions.get(request.API_KEY),
                peer=PEER,
            )
            header = RequestHeader(request.API_KEY, version, 0, client.client_id)
            reply = self.broker.handle(
                self._context(self._lines[client][call.channel].session, header), request
            )
        except Exception as error:  # noqa: BLE001 - a server, too, answers a request whose handler fails
            on_done(failure(request, error))
        else:
            if isinstance(reply, Deferred):
                reply.on_done(lambda response: self._answered(client, on_done, request, response))
                return reply.cancel
            on_done(None if reply is None else with_records_in_memory(reply))
        return None

    def share_partitioner(self, topic: str, named: Named, new: Partitioner) -> Partitioner:
        """Return the partitioner that all producers of this process share for a topic; `new` if it has no state."""
        services = self.broker.services
        found = services.topics.get(topic)
        if self._partitioners is None or found is None:  # the record may create the topic
            return new
        return self._partitioners.share(found, services.partitions, named, new)

    def pump(self) -> int | None:
        """Perform all due work of the clients and of the broker.

        Returns:
            The time of the next deadline, in milliseconds since 1970; None if there is no deadline.
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
                    self._handle_waiting()
                if not self.stirred:
                    break
            if self.listener is not None:
                self.listener.used()
        finally:
            self._pumping = False
        return self._next_deadline_ms()

    def wait(self, until_ms: int | None) -> None:
        """Wait until a time, or until another thread notifies this one. A virtual clock moves to the time at once."""
        clock = self.clock
        if isinstance(clock, ManualClock) and clock.auto_advance and until_ms is not None:
            clock.advance_to(until_ms)
        else:
            self.condition.rest(self._seconds_until(until_ms))

    def apis_changed(self) -> None:
        """Read again which API versions the broker supports. Call this with the lock held."""
        self._versions = version_table(
            (api.key, api.advertised.min, api.advertised.max) for api in self.broker.apis
        )

    # For the listener, with the lock held

    @property
    def sync_stuck(self) -> bool:
        """Whether a sync was still running when the listener ended. The broker cannot be closed then."""
        return self.listener is not None and self.listener.stuck

    @property
    def closed(self) -> bool:
        """Whether the broker takes no more calls."""
        return self._closed

    @uninterrupted
    def topic_changed(self, topic: str) -> None:
        """Have the clients that know a topic refresh its metadata. They do so in their own threads."""
        with self.condition:
            now_ms = self.now_ms()
            for client in self.clients:
                if topic in client.engine.state.metadata.topics:
                    client.engine.at(now_ms, partial(_look_again, client.engine, topic))
            self.stirred = True
            self.pump()

    def wake_answered(self) -> None:
        """Wake the clients that have a response in their inbox. Their threads process it."""
        self._handle_waiting()
        if self.stirred:
            for client in self.clients:
                if client.inbox:
                    client.wake()

    # For `Broker`

    @uninterrupted
    @checked
    def advance(self, duration_ms: int) -> None:
        """Move a `ManualClock` by some milliseconds, and perform all work that is due on the way."""
        clock = self.clock
        assert isinstance(clock, ManualClock), "only a ManualClock can be moved"
        with self.condition:
            end_ms = clock.now_ms() + duration_ms
            while (due_ms := self.pump()) is not None and due_ms <= end_ms:
                clock.advance_to(due_ms)
            clock.advance_to(end_ms)
            self.condition.notify_all()

    @uninterrupted
    def listen(
        self, wanted: listeners.Listener, new_listener: Callable[[BrokerRuntime], ListenerThread]
    ) -> str:
        """Serve the broker over TCP, too.

        Args:
            wanted: The address and the security protocol.
            new_listener: Starts the thread that listens. Called for the first address only.

        Returns:
            HOST:PORT with the port that was chosen.
        """
        with self._listening:
            self._raise_if_closed()
            if self.listener is None:
                listener = new_listener(self)
                with self.condition:
                    self.listener = listener
                    listener.used()
            chosen = self.listener.open(wanted)
        self._address = chosen.host, chosen.port
        return str(chosen)

    @uninterrupted
    def close(self) -> None:
        """End the threads, and fail all calls from now on. The caller closes the broker."""
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
        """Whether this is the copy in a forked child. The broker belongs to the parent."""
        return self._forked

    def disown(self) -> None:
        """Become closed, in a forked child. The broker continues in the parent, which has its threads and sockets."""
        self._closed = self._forked = True
        # A thread of the parent may have held the old lock during the fork.
        self.condition = GuardedCondition()
        self._listening = threading.Lock()
        self._thread = self.listener = None
        self._pumping = False

    # Internal

    def _raise_if_closed(self) -> None:
        if self._forked:
            raise ClosedError(f"this embedded broker {FORKED}")
        if self._closed:
            raise ClosedError("the embedded broker is closed")

    def _handle_waiting(self) -> None:
        """Pass on the requests that waited for the request before them."""
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
        """Put a response, or an exception of its handler, into the client's inbox. `pump` delivers it."""
        if isinstance(response, Exception):
            client.inbox.append((on_done, failure(request, response)))
        else:
            client.inbox.append(
                (on_done, None if response is None else with_records_in_memory(response))
            )
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
        except Exception as error:  # noqa: BLE001 - a callback that raises must not stop the others
            report(error)

    def _run_broker(self) -> None:
        broker, now_ms = self.broker, self.now_ms()
        due_ms = broker.next_deadline_ms
        if due_ms is not None and due_ms <= now_ms:
            broker.tick(now_ms)
        if self.listener is not None and not all(
            each.in_memory for each in broker.services.log_store.dirs
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
            except Exception as error:  # noqa: BLE001 - the broker handles it
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
        """Perform all due work in the background thread, with the lock held.

        Returns:
            The seconds until more work is due; None if the broker is closed.
        """
        self.sleeps_until_ms = 0
        while not self._closed:
            until_ms = self.pump()
            if not self._call_back():
                self.sleeps_until_ms = NEVER_MS if until_ms is None else until_ms
                return self._seconds_until(until_ms)
        return None

    def _call_back(self) -> bool:
        """Run the callbacks of clients whose program is not inside a call; return whether there were any."""
        due = [client for client in self.clients if client.runs_here and client.engine.callbacks]
        if not due:
            return False  # the lock is kept: work that another thread adds before the wait would be missed
        self.condition.release()
        try:
            for client in due:
                client.call_back()
        finally:
            self.condition.acquire()
        return True


def _look_again(engine: Engine, topic: str) -> None:
    engine.state.stale_topics.add(topic)
    engine.notify()
