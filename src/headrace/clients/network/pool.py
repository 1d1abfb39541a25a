"""The connections of one client: which connection carries a call, and when calls and connections are given up.

A pool does no I/O. Its shell opens and closes sockets and moves bytes, and reports events (`connected`, `received`,
`lost`). Calls may be submitted at any time: they wait in the connection until it is open and the handshake is done.

A call that times out fails alone. Its connection is closed only when the broker has been silent for as long as one
request may take: responses come in order, so no later response can arrive before a missing one.

After a broker has refused the credentials, calls to it fail at once for a moment, with the error of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.clients.config import ClientConfig, parse_bootstrap
from headrace.clients.engine import ANY_NODE_SHARE, Outcome
from headrace.clients.flows.effects import ANY_NODE, Call, ClientState
from headrace.clients.network.addresses import Addresses
from headrace.clients.network.connection import Completed
from headrace.clients.network.links import (
    BrokerSearch,
    Link,
    OnDone,
    Pending,
    Shell,
    UnsentError,
    late_error,
    new_link,
    peer_name,
    unsent,
    unsettled,
)
from headrace.clients.network.outages import REPORT_AFTER_MS, Address, Outages
from headrace.clients.network.versions import CLIENT_MAX_VERSIONS
from headrace.errors import (
    AuthenticationError,
    ClosedError,
    HeadraceError,
    InternalError,
    TransportError,
)
from headrace.security.mechanisms import SaslClient

RENEWAL_PAUSE_MS: Final = 1000
"""Milliseconds before credentials for a new login are requested again after a failure."""


class Pool:
    """The connections of one client, by address and channel."""

    def __init__(
        self,
        state: ClientState,
        config: ClientConfig,
        shell: Shell,
        *,
        now_ms: Callable[[], int],
        shuffle: Callable[[list[Address]], None],
        on_error: Callable[[Exception], object],
        renewal_share: Callable[[], float] = lambda: 0.9,
        report: Callable[[str], object] = lambda _: None,
        max_versions: Mapping[int, int] = CLIENT_MAX_VERSIONS,
    ) -> None:
        """Prepare a pool.

        Args:
            state: The state of the client, with the addresses of brokers.
            config: The client's configuration.
            shell: Opens, closes and serves sockets.
            now_ms: Returns the time in milliseconds.
            shuffle: Shuffles the known brokers, so that clients spread over them.
            on_error: Called with an exception of a call's `on_done`. Other calls get their outcomes nevertheless.
            renewal_share: Returns the part of a session after which to log in again; it varies, so that many clients do
                not log in at the same time.
            report: Logs that a broker does not answer, or answers again.
            max_versions: The newest version of each API that the client uses.
        """
        self._outages = Outages(
            lambda address, text: report(f"broker {peer_name(address)}: {text}")
        )
        self.links: dict[tuple[Address, str], Link] = {}
        self.lost_connections = 0
        """The number of connections that have ended after their handshake."""
        self.submitted = 0
        """The number of requests that were submitted so far."""
        self._state = state
        self._config = config
        self._shell = shell
        self._now_ms = now_ms
        self._on_error = on_error
        self._renewal_share = renewal_share
        self._max_versions = max_versions
        self._addresses = Addresses(state, parse_bootstrap(config.bootstrap_servers), shuffle)
        self._searches: dict[str, BrokerSearch] = {}
        """The running searches for any broker, by channel."""
        self._closed: ClosedError | None = None

    # Calls of the engine

    def submit(self, call: Call, deadline_ms: int, on_done: OnDone) -> None:
        """Send a request as soon as possible; call `on_done` with its outcome, at the deadline at the latest."""
        self.submitted += 1
        limit_ms = self._config.request_timeout_ms
        if call.timeout_ms is not None:
            limit_ms = call.timeout_ms
        elif call.node == ANY_NODE:
            limit_ms //= ANY_NODE_SHARE
        pending = Pending(call, deadline_ms, limit_ms, on_done)
        try:
            self._submit(call, pending)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the call
            what = f"{type(call.request).__name__} cannot be sent"
            self._complete(pending, InternalError.of(error, what))

    def _submit(self, call: Call, pending: Pending) -> None:
        if self._closed is not None:
            self._complete(pending, self._closed)
        elif call.node == ANY_NODE:
            self._submit_anywhere(pending, call.channel)
        elif (broker := self._state.metadata.brokers.get(call.node)) is None:
            error = UnsentError(f"the address of broker {call.node} is not known")
            self._complete(pending, error)
        else:
            self._carry(self._link((broker.host, broker.port), call.channel), pending)

    def connect(self, deadline_ms: int, on_done: OnDone) -> None:
        """Find a broker that answers, trying each address once; call `on_done` with None or the error."""
        pending = Pending(None, deadline_ms, 0, on_done)
        if self._closed is not None:
            self._complete(pending, self._closed)
        else:
            self._submit_anywhere(pending, "")

    @property
    def busy(self) -> bool:
        """Whether the pool waits for an event of a socket."""
        if self._searches:
            return True
        return any(
            not link.ready or link.authenticating or not link.connection.idle
            for link in self.links.values()
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `expire`; None if nothing depends on the time."""
        moments = [
            pending.deadline_ms for search in self._searches.values() for pending in search.waiting
        ]
        for link in self.links.values():
            if not link.ready:
                moments.append(link.setup_until_ms)
            if link.renew_at_ms is not None:
                moments.append(link.renew_at_ms)
            for pending in unsettled(link):
                if not pending.done:
                    moments.append(pending.deadline_ms)
                if link.ready:
                    moments.append(pending.silent_from_ms)
            silent_ms = self._report_silence_ms(link)
            if silent_ms is not None:
                moments.append(silent_ms)
        report_ms = self._outages.next_deadline_ms
        if report_ms is not None:
            moments.append(report_ms)
        return min(moments, default=None)

    @property
    def trouble(self) -> str | None:
        """The reported reason why no broker can be reached at present; None if one can."""
        return None if self._answering else self._outages.reason(self._now_ms())

    @property
    def _answering(self) -> set[Address]:
        """The brokers with a connection that are not reported as unreachable."""
        ready = {link.address for link in self.links.values() if link.ready}
        return {address for address in ready if not self._outages.is_away(address)}

    def _report_silence_ms(self, link: Link) -> int | None:
        """Return when a silent connection must be reported; None if it need not be."""
        if not link.ready or self._outages.is_away(link.address):
            return None
        pending = next(unsettled(link), None)
        if pending is None or pending.patience_ms is None:
            return None
        return max(pending.sent_ms, link.received_ms) + pending.patience_ms

    def expire(self, now_ms: int) -> None:
        """Fail calls that have timed out, close silent connections, and report brokers that do not answer."""
        for link in list(self.links.values()):
            silent_ms = self._report_silence_ms(link)
            if silent_ms is not None and silent_ms <= now_ms:
                self._outages.silent(link.address, silent_ms - REPORT_AFTER_MS, now_ms)
            if not link.ready and link.setup_until_ms <= now_ms:
                if link.open:
                    self.lost(link, "does not answer the handshake")
                else:
                    self.refused(link, "timed out")
            elif link.ready and any(p.silent_from_ms <= now_ms for p in unsettled(link)):
                self.lost(link, "did not answer in time")
            else:
                for pending in [each for each in link.pending if each.deadline_ms <= now_ms]:
                    self._complete(pending, late_error(link, pending))
                if link.renew_at_ms is not None and link.renew_at_ms <= now_ms:
                    self._renew(link, now_ms)
        for search in list(self._searches.values()):
            late = [pending for pending in search.waiting if pending.deadline_ms <= now_ms]
            search.waiting = [pending for pending in search.waiting if pending not in late]
            tried = [] if search.link is None else [f"{search.link.peer} did not answer in time"]
            self._fail(late, TransportError("; ".join(search.failures + tried)))
        self._outages.expire(now_ms, self._answering)

    def close(self) -> None:
        """Close all connections, fail all calls, and accept no more."""
        self._closed = ClosedError("the client was closed")
        self._outages.clear()
        searches, self._searches = self._searches, {}
        for search in searches.values():
            self._fail(search.waiting, self._closed)
        for link in list(self.links.values()):
            self._drop(link, self._closed)

    # Events from the shell

    def connected(self, link: Link) -> None:
        """Note that the socket of a link is open."""
        if link.lost is None:
            link.open = True
            self._flush(link)

    def received(self, link: Link) -> None:
        """Handle the responses that a connection has decoded."""
        if link.lost is not None:
            return
        link.received_ms = self._now_ms()
        if not link.ready:
            self._shake_hands(link)
        elif link.authenticating:
            self._flush(link)
            self._note_login(link)
        elif self._outages.is_away(link.address):
            self._note_answer(link.address, link.received_ms)
        self._settle(link.connection.take_completed())

    def _note_answer(self, address: Address, now_ms: int) -> None:
        """Note that a broker answers. If its outage was reported, its other connections get more time to answer."""
        if self._outages.is_away(address):
            for link in self.links.values():
                if link.address == address:
                    link.received_ms = now_ms
        self._outages.answered(address, now_ms)

    def present(self, link: Link, client: SaslClient) -> None:
        """Log in with these credentials when all earlier requests have responses."""
        if link.lost is not None:
            return
        if link.authenticating:
            link.renew_at_ms = self._now_ms() + self._config.socket_connection_setup_timeout_ms
        try:
            link.connection.authenticate(client)
        except AuthenticationError as error:
            self.denied(link, error)
        except Exception as error:  # noqa: BLE001 - calls that wait for the login get it
            self.failed(link, error)
        else:
            self._flush(link)

    def denied(self, link: Link, error: AuthenticationError) -> None:
        """Close a connection because authentication of the client or of the broker failed."""
        if link.lost is not None:
            return
        now_ms = self._now_ms()
        if link.authenticating and not link.connection.logging_in and now_ms < link.expires_ms:
            # Only the new credentials failed; the last login is still valid.
            link.authenticating = False
            link.renew_at_ms = now_ms + max(RENEWAL_PAUSE_MS, (link.expires_ms - now_ms) // 2)
            self._on_error(error)
            return
        self._addresses.refused(link.address, error, now_ms + self._config.retry_backoff_max_ms)
        self._give_up(link, error)

    def lost(self, link: Link, reason: str) -> None:
        """Close a connection; its calls fail with an error that names the peer.

        Args:
            link: The connection.
            reason: The reason, a phrase that follows the name of the peer.
        """
        hung_up = link.lost is None and reason.startswith(("closed", "lost"))
        supposed = self._supposed(link) if hung_up else ""
        text = f"{link.peer} {reason}{supposed}"
        answers = supposed and link.connection.answers
        if answers and self._addresses.refuses_first_requests(link.address):
            # The broker is not starting: it answers each handshake, and closes the connection on the next request.
            self.denied(link, AuthenticationError(text))
            return
        self._give_up(link, TransportError(text))

    def failed(self, link: Link, error: Exception) -> None:
        """Close a connection after an exception in the client's own code."""
        self._on_error(error)
        self.lost(link, f"cannot be used: {type(error).__name__}: {error}")

    def refused(self, link: Link, reason: str) -> None:
        """Fail a connection that could not be opened."""
        self._give_up(link, TransportError(f"cannot connect to {link.peer}: {reason}"))

    # Links

    def _give_up(self, link: Link, error: TransportError | AuthenticationError) -> None:
        if link.lost is not None:
            return
        if not link.ready:
            self._addresses.failed(link.address, self._now_ms())
            self._outages.failed(link.address, str(error), self._now_ms())
        self._drop(link, error)
        search = self._searches.get(link.channel)
        if search is not None and search.link is link:
            self._try_next(link.channel, search, error)

    def _supposed(self, link: Link) -> str:
        """Return a hint about `security.protocol` for a broker that closes the connection without any response."""
        config, connection = self._config, link.connection
        if config.authenticates or self._state.metadata.brokers:
            return ""
        if connection.answers == 0:
            other = "PLAINTEXT" if config.encrypted else "SSL or SASL_SSL"
        elif connection.answers == 1 and not connection.idle:
            other = "SASL_SSL" if config.encrypted else "SASL_PLAINTEXT"
        else:
            return ""
        return f"; should security.protocol be {other}?"

    def _link(self, address: Address, channel: str) -> Link:
        link = self.links.get((address, channel))
        if link is not None:
            return link
        now_ms = self._now_ms()
        link = new_link(address, channel, self._config, self._max_versions, now_ms)
        refusal = self._addresses.refusal(address, now_ms)
        if refusal is not None:
            link.lost = refusal
            return link
        self.links[address, channel] = link
        self._outages.trying(address, now_ms)
        try:
            self._shell.open(link)
        except Exception as error:  # noqa: BLE001 - calls that wait for the connection get it
            self.refused(link, f"{type(error).__name__}: {error}")
        return link

    def _shake_hands(self, link: Link) -> None:
        if link.connection.ready:
            link.ready = True
            self._addresses.succeeded(link.address)
            now_ms = self._now_ms()
            self._note_answer(link.address, now_ms)
            for pending in link.pending:
                pending.silent_from_ms = now_ms + pending.limit_ms
            self._note_login(link)
        # This sends the requests that waited for the handshake, or the next request of the handshake.
        self._flush(link)
        if link.lost is not None:
            return  # the search has continued with the next address
        if link.connection.wants_credentials and not link.authenticating:
            link.authenticating = True
            self._authenticate(link)
        search = self._searches.pop(link.channel, None) if link.ready else None
        for pending in search.waiting if search is not None else ():
            self._carry(link, pending)

    def _note_login(self, link: Link) -> None:
        """Schedule the next login of a connection that has logged in, before the session ends."""
        connection = link.connection
        if link.logins == connection.logins:
            return
        link.logins = connection.logins
        link.authenticating = False
        link.renew_at_ms = None
        lifetime_ms = connection.session_lifetime_ms
        if lifetime_ms > 0:
            now_ms = self._now_ms()
            link.expires_ms = now_ms + lifetime_ms
            link.renew_at_ms = now_ms + round(lifetime_ms * self._renewal_share())

    def _renew(self, link: Link, now_ms: int) -> None:
        """Log in again, or close the connection if a running login has taken too long."""
        if link.authenticating and link.connection.logging_in:
            self.lost(link, "did not answer the login in time")
            return
        link.renew_at_ms = now_ms + self._config.socket_connection_setup_timeout_ms
        if link.authenticating:
            return  # the credentials are requested, or a request before the login is pending and has its own deadline
        link.authenticating = True
        if link.expires_ms <= now_ms:
            link.connection.hold()
        self._authenticate(link)

    def _authenticate(self, link: Link) -> None:
        try:
            self._shell.authenticate(link)
        except Exception as error:  # noqa: BLE001 - calls that wait for the login get it
            self.failed(link, error)

    def _flush(self, link: Link) -> None:
        try:
            self._shell.flush(link)
        except Exception as error:  # noqa: BLE001 - pending calls get it
            self.failed(link, error)

    def _carry(self, link: Link, pending: Pending) -> None:
        if link.lost is not None:
            self._complete(pending, unsent(link.lost))
            return
        call = pending.call
        if call is None:
            self._complete(pending, None)
            return
        pending.sent_ms = self._now_ms()
        pending.silent_from_ms = pending.sent_ms + pending.limit_ms
        connection = link.connection
        link.pending.append(
            pending
        )  # before any code that can fail, so that the call has a deadline
        connection.send(call.request, pending, answered=call.answered, max_version=call.max_version)
        if link.ready:
            self._flush(link)
            if link.lost is None:
                self._settle(connection.take_completed())

    def _drop(self, link: Link, error: HeadraceError) -> None:
        link.lost = error
        self.lost_connections += link.ready
        del self.links[link.address, link.channel]
        try:
            self._shell.close(link)
        except Exception as failure:  # noqa: BLE001 - the calls fail with the loss of the connection nevertheless
            self._on_error(failure)
        self._settle(link.connection.abandon(error, unsent(error)))
        link.pending.clear()

    # Calls to any broker

    def _submit_anywhere(self, pending: Pending, channel: str) -> None:
        ready = [link for link in self.links.values() if link.channel == channel and link.ready]
        if ready:
            self._carry(min(ready, key=lambda link: len(link.pending)), pending)
            return
        search = self._searches.get(channel)
        if search is not None:
            search.waiting.append(pending)
            return
        self._searches[channel] = search = BrokerSearch(self._addresses.in_order())
        search.waiting.append(pending)
        self._step(channel, search)

    def _try_next(self, channel: str, search: BrokerSearch, error: HeadraceError) -> None:
        """Try the next address after a failure. A refused login fails all calls: other brokers would refuse it, too."""
        search.failures.append(str(error))
        if isinstance(error, AuthenticationError):
            self._searches.pop(channel, None)
            self._fail(search.waiting, error)
        else:
            self._step(channel, search)

    def _step(self, channel: str, search: BrokerSearch) -> None:
        """Try the next address. End the search if there is no address left, or if no call waits."""
        while search.waiting and search.addresses:
            search.link = link = self._link(search.addresses.popleft(), channel)
            if link.lost is None:
                return
            if isinstance(link.lost, AuthenticationError):
                self._try_next(channel, search, link.lost)
                return
            search.failures.append(str(link.lost))
        self._searches.pop(channel, None)
        self._fail(search.waiting, TransportError("; ".join(search.failures)))

    # Outcomes

    def _settle(self, completed: Iterable[Completed[Pending]]) -> None:
        for pending, outcome in completed:
            pending.settled = True
            self._complete(pending, outcome)

    def _fail(self, pendings: Iterable[Pending], error: HeadraceError) -> None:
        for pending in pendings:
            self._complete(pending, error)

    def _complete(self, pending: Pending, outcome: Outcome) -> None:
        if pending.done:
            return
        pending.done = True
        try:
            pending.on_done(outcome)
        except Exception as error:  # noqa: BLE001 - other callers must get their outcomes nevertheless
            self._on_error(error)
