"""The end of an admin client that the program drops without closing it."""

from __future__ import annotations

from headrace.clients.drivers import AsyncDriver, Driver
from headrace.clients.drivers.unclosed import closing_tasks, warn_unclosed


class AsyncAdminLifetime:
    """The part of an asyncio admin client that handles a missing `close()`: its event loop closes the client."""

    _driver: AsyncDriver

    def __del__(self) -> None:
        driver = getattr(
            self, "_driver", None
        )  # missing if the constructor has raised an exception
        if driver is not None and not driver.ended:
            closing_tasks.begin(driver.loop, driver.close)
            warn_unclosed(self, "close()", None)


class BlockingAdminLifetime:
    """The part of a blocking admin client that handles a missing `close()`: a thread closes the client."""

    _driver: Driver

    def __del__(self) -> None:
        driver = getattr(
            self, "_driver", None
        )  # missing if the constructor has raised an exception
        if driver is not None and not driver.ended:
            warn_unclosed(self, "close()", driver.close, in_thread=not driver.by_hand)
