"""Child processes of commands end when the command is killed."""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent(stdin: int = 0) -> None:
    """Send SIGTERM to this process when its parent ends: only the parent has the other end of the standard input."""

    def wait() -> None:
        while os.read(stdin, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="headrace-parent", daemon=True).start()
