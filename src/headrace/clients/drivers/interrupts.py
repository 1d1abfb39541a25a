"""Signals that arrive while the main thread runs code of a blocking client.

Python runs a signal handler in the main thread, between any two bytecode instructions. The handler may raise an
exception: KeyboardInterrupt, SystemExit, the timeout of a test. An exception in the middle of a client's work would
leave half of a change behind. Therefore the program's handlers are wrapped while the main thread is inside a call of a
blocking client. A signal that arrives while the main thread holds a client's lock becomes pending, and its handler runs
as soon as the thread has released the lock. A wait for bytes ends at once. Code of the program that a client calls is
interrupted as usual.

The handlers are unwrapped at the end of a call that waits, because asyncio checks whether SIGINT has Python's handler.
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
"""The longest delay in seconds before a main thread that waits for another thread handles a signal."""
_MARK: Final = "_headrace_of_a_signal"

# The functions in C. Their wrappers in `signal` convert to enumerations, which takes twenty times as long.
_get_handler: Final[Callable[[int], Any]] = getattr(
    signal.getsignal, "__wrapped__", signal.getsignal
)
_set_handler: Final[Callable[[int, Any], Any]] = getattr(
    signal.signal, "__wrapped__", signal.signal
)


def do_nothing() -> None:
    """Do nothing: the main thread does not wait, so it need not be woken."""


class _Wrapped:
    """The wrapper of a signal handler of the program."""

    def __init__(self, owner: Interrupts, handler: Handler) -> None:
        self.handler = handler
        self._owner = owner

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Run the handler, or make the signal pending until the main thread has left the client."""
        if self._owner.inside:
            self._owner.pending.append((self.handler, number))
            self._owner.wake()
        else:
            run_handler(self.handler, number, frame)


def run_handler(handler: Handler, number: int, frame: FrameType | None) -> None:
    """Run a handler, and mark its exception, so that it differs from exceptions of the program's callbacks."""
    try:
        handler(number, frame)
    except BaseException as error:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _MARK, True)
        raise


def of_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised this exception. Then the program gets it; otherwise a callback failed."""
    return getattr(error, _MARK, False)


class Interrupts:
    """The state of signal handling in this process. The only instance is `interrupts`."""

    def __init__(self) -> None:
        self.pending: deque[tuple[Handler, int]] = deque()
        """The pending signals with their handlers, which run when the main thread has left the client."""
        self.on = False
        """Whether the program's handlers are wrapped."""
        self.main = threading.main_thread().ident
        """The ident of the main thread."""
        self.resting: Callable[[], object] | None = None
        """The function that wakes the main thread while it is inside a client without the lock; otherwise None."""
        self._locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced: dict[int, _Wrapped] = {}
        self._depth = 0
        """The number of nested calls of clients that the main thread is inside."""
        disown_in_children(self)

    def guard(self, lock: Any) -> None:
        """Defer signals while the main thread holds this lock, a `threading.RLock`."""
        self._locks.add(lock)

    @property
    def is_main(self) -> bool:
        """Whether the current thread is the main thread."""
        return threading.get_ident() == self.main

    @property
    def inside(self) -> bool:
        """Whether the main thread runs code of a client. Only the main thread may read this."""
        return self.resting is not None or any(
            lock._is_owned()  # noqa: SLF001 - there is no public method for this
            for lock in list(self._locks)
        )

    def wake(self) -> None:
        """End a wait of the main thread. Signal handlers call this."""
        if self.resting is not None:
            self.resting()

    # Around calls

    def begin_call(self) -> bool:
        """Wrap the handlers if this is the main thread. Return whether `end_call` must follow."""
        if threading.get_ident() != self.main:
            return False
        self.wrap()
        self._depth += 1  # no signal handler can run between this line and the caller's assignment
        return True

    def end_call(self) -> None:
        """Unwrap the handlers at the end of the outermost call; run those that are pending.

        The caller has set `resting` to `do_nothing`.
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
        """Wrap the program's handlers. Only the main thread may call this."""
        for number in SIGNALS:
            handler = _get_handler(number)
            if callable(handler) and not isinstance(handler, _Wrapped):
                self._replaced[number] = wrapped = _Wrapped(self, handler)
                _set_handler(number, wrapped)
        self.on = True  # last, because an exception of a handler may end this function anywhere

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
        """Run the handlers of pending signals if this is the main thread and it is not inside a client."""
        while self.pending and threading.get_ident() == self.main and not self.inside:
            handler, number = self.pending.popleft()
            run_handler(handler, number, None)

    # Inside a call, while the lock is released

    def rest(self, wake: Callable[[], object]) -> bool:
        """Defer signals also after the lock is released, if this is the main thread. Return whether it is.

        Args:
            wake: A function that ends the wait that follows.
        """
        if threading.get_ident() != self.main:
            return False
        self.resting = wake
        return True

    def call_outside(
        self, lock: Any, function: Callable[..., Any], arguments: tuple[Any, ...] = ()
    ) -> Any:
        """Run a function of the program without the lock. Signals interrupt only this function, as usual."""
        main = self.rest(do_nothing)
        lock.release()
        try:
            if main:
                self.resting = None
                self.deliver()
            return function(*arguments)
        finally:
            if main:
                self.resting = do_nothing
            lock.acquire()
            if main:
                self.resting = None

    def call_back(
        self, due: deque[Callable[[], object]], report: Callable[[BaseException], object]
    ) -> None:
        """Run callbacks of the program until none is due. Signals interrupt them as usual, and no callback is lost.

        Args:
            due: The callbacks.
            report: Called with the exception of a callback. The exception of a signal handler is raised instead.
        """
        main = self.rest(do_nothing)
        try:
            while due:
                callback = due.popleft()
                try:
                    if main:
                        self.resting = None
                    callback()
                except BaseException as error:
                    if main:
                        self.resting = do_nothing
                        if of_a_signal(error):
                            raise
                    report(error)
                if main:
                    self.resting = do_nothing
        finally:
            if main:
                self.resting = None
        if self.pending:
            self.deliver()

    def disown(self) -> None:
        """Reset the state in a forked child. Its main thread is the thread that has forked."""
        self.pending.clear()
        self.main = threading.get_ident()
        self.resting = None
        self._locks.clear()
        self._unwrap()
        disown_in_children(self)


interrupts: Final = Interrupts()


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """Defer signals while the main thread is inside the function and holds a client's lock."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        main = False
        try:
            main = interrupts.begin_call()
            return function(*arguments, **named)
        finally:
            if main:
                interrupts.resting = (
                    do_nothing  # otherwise a handler could run before `end_call` has begun
                )
                interrupts.end_call()

    return call


class GuardedCondition(threading.Condition):
    """A condition whose lock defers signals while the main thread holds it."""

    def __init__(self, lock: Any = None) -> None:
        """Create a condition. `lock` is a `threading.RLock`; None creates one."""
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
        """Wake all threads that wait for the condition."""
        with self:
            self.notify_all()

    def rest(self, timeout_s: float) -> None:
        """Wait as `wait` does. In the main thread, a signal ends the wait early."""
        main = interrupts.rest(self.nudge)
        if main:
            # A signal that arrives just before the wait begins does not end the wait.
            timeout_s = 0 if interrupts.pending else min(timeout_s, SIGNALS_WAIT_S)
        try:
            self.wait(timeout_s)
        finally:
            if main:
                interrupts.resting = None
