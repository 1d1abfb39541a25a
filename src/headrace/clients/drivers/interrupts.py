"""Signals that arrive while the main thread is at work inside a blocking client.

Python runs the handler of a signal in the main thread, between any two steps of whatever that does, and the handler may
raise: KeyboardInterrupt, SystemExit, the time-out of a test. In the middle of a client's work this would leave half of
a change behind. So while the main thread is in a call of a blocking client, the handlers that the program has are
wrapped: a signal that comes while the main thread holds a client's lock is kept, and its handler runs as soon as the
lock is free. A wait for bytes ends at once for it. The program's own code that a client calls is interrupted as usual.

The handlers are unwrapped when a call that waits has ended, because asyncio looks whether SIGINT has Python's own.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from headrace.forking import disown_in_children

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]

SIGNALS: Final = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
SIGNALS_WAIT_S: Final = 0.1
"""How late a signal may be noticed by a main thread that waits for another thread."""
_MARK: Final = "_headrace_of_a_signal"

# The functions in C: the ones around them make members of enumerations, which takes twenty times as long.
_get_handler: Final[Callable[[int], Any]] = getattr(
    signal.getsignal, "__wrapped__", signal.getsignal
)
_set_handler: Final[Callable[[int, Any], Any]] = getattr(
    signal.signal, "__wrapped__", signal.signal
)


def nobody() -> None:
    """Wake nobody: the main thread is not waiting."""


class _Wrapped:
    """Stands for a handler of the program."""

    def __init__(self, owner: Interrupts, handler: Handler) -> None:
        self.handler = handler
        self._owner = owner

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Run the handler, or keep the signal until the main thread is out of the client."""
        if self._owner.inside:
            self._owner.pending.append((self.handler, number))
            self._owner.wake()
        else:
            run_handler(self.handler, number, frame)


def run_handler(handler: Handler, number: int, frame: FrameType | None) -> None:
    """Run a handler; what it raises can be told from what the program's callbacks raise."""
    try:
        handler(number, frame)
    except BaseException as error:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _MARK, True)
        raise


def of_a_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it, so that it is the program's and no callback's."""
    return getattr(error, _MARK, False)


class Interrupts:
    """What is known of signals in this process; there is one, `interrupts`."""

    def __init__(self) -> None:
        self.pending: deque[tuple[Handler, int]] = deque()
        """Handlers that are to run when the main thread is out of the client, with their signals."""
        self.on = False
        """Whether the program's handlers are wrapped."""
        self.main = threading.main_thread().ident
        self.resting: Callable[[], object] | None = None
        """Set while the main thread is inside a client without its lock: how it is woken."""
        self._locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced: dict[int, _Wrapped] = {}
        self._depth = 0
        """Calls of clients that the main thread is in, one from within the other."""
        disown_in_children(self)

    def guard(self, lock: Any) -> None:
        """Keep signals from the main thread while it holds this lock, a `threading.RLock`."""
        self._locks.add(lock)

    @property
    def is_main(self) -> bool:
        """Whether this is the main thread."""
        return threading.get_ident() == self.main

    @property
    def inside(self) -> bool:
        """Whether the main thread, which asks, is at work inside a client."""
        return self.resting is not None or any(
            lock._is_owned()  # noqa: SLF001 - there is no other way to ask
            for lock in list(self._locks)
        )

    def wake(self) -> None:
        """Have the main thread end a wait, from a handler."""
        if self.resting is not None:
            self.resting()

    # Around calls

    def begin_call(self) -> bool:
        """Wrap the handlers, if this is the main thread; tell whether `end_call` has to follow."""
        if threading.get_ident() != self.main:
            return False
        self.wrap()
        self._depth += 1  # nothing can be interrupted between this and the caller's assignment
        return True

    def end_call(self) -> None:
        """Unwrap the handlers at the end of the outermost call; run those that are pending.

        The caller has set `resting` to `nobody`.
        """
        self._depth -= 1
        try:
            if self._depth <= 0:
                self._unwrap()
        finally:
            self.resting = None
        if self.pending:
            self.deliver()

    def wrap(self) -> None:
        """Wrap the handlers; in the main thread."""
        for number in SIGNALS:
            handler = _get_handler(number)
            if callable(handler) and not isinstance(handler, _Wrapped):
                self._replaced[number] = wrapped = _Wrapped(self, handler)
                _set_handler(number, wrapped)
        self.on = True  # not before, for a signal may end this anywhere

    def _unwrap(self) -> None:
        self._depth = 0
        self.on = False
        interruption: BaseException | None = None
        while self._replaced:
            try:
                for number, wrapped in list(self._replaced.items()):
                    if _get_handler(number) is wrapped:
                        _set_handler(number, wrapped.handler)
                    self._replaced.pop(number, None)
            except BaseException as error:  # noqa: BLE001 - raised when the other handlers are unwrapped too
                interruption = error
        if interruption is not None:
            raise interruption

    def deliver(self) -> None:
        """Run the handlers that are pending, if this is the main thread and it is out of the clients."""
        while self.pending and threading.get_ident() == self.main and not self.inside:
            handler, number = self.pending.popleft()
            run_handler(handler, number, None)

    # Inside a call, without the lock

    def rest(self, wake: Callable[[], object]) -> bool:
        """From now on keep signals though the lock is let go, if this is the main thread; tell whether it is.

        Args:
            wake: Ends the wait that follows.
        """
        if threading.get_ident() != self.main:
            return False
        self.resting = wake
        return True

    def call_outside(
        self, lock: Any, function: Callable[..., Any], arguments: tuple[Any, ...] = ()
    ) -> Any:
        """Run the program's own code with the lock free: signals interrupt that code as usual, and nothing else."""
        main = self.rest(nobody)
        lock.release()
        try:
            if main:
                self.resting = None
                self.deliver()
            return function(*arguments)
        finally:
            if main:
                self.resting = nobody
            lock.acquire()
            if main:
                self.resting = None

    def call_back(
        self, due: deque[Callable[[], object]], report: Callable[[BaseException], object]
    ) -> None:
        """Run callbacks of the program until none is due; signals interrupt them as usual, and lose none of them.

        Args:
            due: The callbacks.
            report: Told what a callback raises. What the handler of a signal raises goes to the program.
        """
        main = self.rest(nobody)
        try:
            while due:
                callback = due.popleft()
                try:
                    if main:
                        self.resting = None
                    callback()
                except BaseException as error:
                    if main:
                        self.resting = nobody
                        if of_a_signal(error):
                            raise
                    report(error)
                if main:
                    self.resting = nobody
        finally:
            if main:
                self.resting = None
        if self.pending:
            self.deliver()

    def disown(self) -> None:
        """Begin anew in a forked child, whose main thread is the one that forked."""
        self.pending.clear()
        self.main = threading.get_ident()
        self.resting = None
        self._locks.clear()
        self._unwrap()
        disown_in_children(self)


interrupts: Final = Interrupts()


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """Have signals kept from the main thread while it is in a function and has a client's lock."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        main = False
        try:
            main = interrupts.begin_call()
            return function(*arguments, **named)
        finally:
            if main:
                interrupts.resting = nobody  # or a signal might come before `end_call` has begun
                interrupts.end_call()

    return call


class GuardedCondition(threading.Condition):
    """A condition over a lock that signals respect."""

    def __init__(self, lock: Any = None) -> None:
        """Prepare; `lock` is a `threading.RLock`, None is one of its own."""
        lock = threading.RLock() if lock is None else lock
        super().__init__(lock)
        interrupts.guard(lock)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if interrupts.pending:
            interrupts.deliver()

    def nudge(self) -> None:
        """Wake those who wait."""
        with self:
            self.notify_all()

    def rest(self, timeout_s: float) -> None:
        """Wait, as `wait` does, but perhaps for less: in the main thread signals end it."""
        main = interrupts.rest(self.nudge)
        if main:
            # A signal that comes just before the wait begins wakes nobody.
            timeout_s = 0 if interrupts.pending else min(timeout_s, SIGNALS_WAIT_S)
        try:
            self.wait(timeout_s)
        finally:
            if main:
                interrupts.resting = None
