"""The presets of durability: what an acknowledgement promises, and when data is synced.

* `fsync`: the batch is on stable storage.
* `interval:<ms>`: it is in the page cache, and will be on stable storage within that time. It survives the end of the
  process; a power cut loses at most what was acknowledged within the interval and the duration of one sync.
* `os`: it is in the page cache. It survives the end of the process, and nothing is promised about a power cut.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import ConfigError

FSYNC: Final = "fsync"
OS: Final = "os"
MAX_INTERVAL_MS: Final = 3_600_000

_INTERVAL: Final = "interval:"


def sync_interval_ms(durability: str) -> int | None:
    """Return after how many milliseconds data is synced: 0 before it is acknowledged, None at no promised time.

    Raises:
        ConfigError: There is no such preset.
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
