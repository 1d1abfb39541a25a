"""The durability presets: what an acknowledgement promises, and when data is synced.

* `fsync`: the batch is on stable storage.
* `interval:<ms>`: the batch is in the page cache, and will be on stable storage within that time. The batch survives
  the
  end of the process. A power failure loses at most the batches acknowledged during the interval and one sync.
* `os`: the batch is in the page cache. It survives the end of the process. A power failure may lose it.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import ConfigError

FSYNC: Final = "fsync"
OS: Final = "os"
MAX_INTERVAL_MS: Final = 3_600_000

_INTERVAL: Final = "interval:"


def sync_interval_ms(durability: str) -> int | None:
    """Return the promised time until data is synced, in milliseconds.

    0 stands for a sync before the acknowledgement, None for no promise.

    Raises:
        ConfigError: The preset does not exist.
    """
    if durability == FSYNC:
        return 0
    if durability == OS:
        return None
    digits = durability.removeprefix(_INTERVAL)
    if durability.startswith(_INTERVAL) and digits.isascii() and digits.isdigit():
        number = int(digits) if len(digits) <= len(str(MAX_INTERVAL_MS)) else MAX_INTERVAL_MS + 1
        if 1 <= number <= MAX_INTERVAL_MS:
            return number
        raise ConfigError(f"the interval must be 1 to {MAX_INTERVAL_MS} ms, got {digits[:40]}")
    raise ConfigError(f"expected fsync, interval:<ms> or os, got {durability[:40]!r}")
