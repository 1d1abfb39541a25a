"""The program of the guard. It imports nothing but what it needs, because each broker has a guard.

`python -I -S guard_process.py BROKER SESSIONS LIFE`: the process id of the broker, the descriptor from which the guard
reads the broker's sessions, and a descriptor that is only open: the broker sees its end when the guard has ended.
"""

import os
import signal
import sys


def main() -> None:
    """Forward signals until the broker has ended. If it has failed, run the program that ends its session."""
    broker, sessions = map(int, sys.argv[1:3])

    def forward(number: int, _frame: object) -> None:
        try:  # noqa: SIM105 - contextlib is not imported
            os.kill(broker, number)
        except ProcessLookupError:
            pass

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    session = b""
    while said := os.read(sessions, 65_536):
        session = (session + said).rstrip(b"\n").rpartition(b"\n")[2]
    code = os.waitstatus_to_exitcode(os.waitpid(broker, 0)[1])
    if code == 0 or not session:
        sys.exit(code if code >= 0 else 128 - code)
    stdin, end = os.pipe()
    os.write(end, session)
    os.close(end)
    os.dup2(stdin, 0)
    program = [sys.executable, "-P", "-m", "headrace.server.guard.end_session", str(code)]
    os.execv(sys.executable, program)  # noqa: S606 - this interpreter


main()
