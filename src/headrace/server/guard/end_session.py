"""The program that a guard runs when its broker has failed: `python -m headrace.server.guard.end_session CODE`.

It reads the session from standard input, ends it, and exits with the code of the broker, or with 128 plus the number of
the signal that has killed the broker, as a shell does.
"""

from __future__ import annotations

import json
import signal
import sys

from headrace.errors import HeadraceError
from headrace.metadata_stores.zookeeper import ZooKeeperSettings, ZooKeeperTls
from headrace.metadata_stores.zookeeper.takeover import SessionKey, end_session
from headrace.server.log import LoggingJournal, configure_logging


def main() -> int:
    """End the session of a broker, log that it has failed, and return the exit code."""
    code, given = int(sys.argv[1]), json.loads(sys.stdin.buffer.read())
    configure_logging(*given["log"])
    tls = None if given["tls"] is None else ZooKeeperTls(**given["tls"])
    settings = ZooKeeperSettings(
        given["connect"], session_timeout_ms=given["session_timeout_ms"], tls=tls
    )
    key = SessionKey(given["number"], bytes.fromhex(given["password"]))
    try:
        session = "ended" if end_session(settings, key) else "expires by itself"
    except HeadraceError as error:
        session = f"expires by itself: {error}"
    failed = str(code) if code >= 0 else signal.Signals(-code).name
    LoggingJournal().error("broker_failed", exit=failed, session=session)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
