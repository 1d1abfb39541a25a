"""Where connections and the broker meet: decode a request, hand it to the broker, encode its answer.

Also what belongs to no single connection: the set of open ones and its limits, the end of a wake-up (flush, sync, timer),
and the sweep once a second (time-outs, spare memory, the clock).
"""

from __future__ import annotations

from typing import Final

_SWEEP_INTERVAL_S: Final = 1.0
