"""Run the commands of the README's recording and draw `docs/images/terminal.svg` from what they print.

The recording is real: a broker in memory, a worker, and the commands of a user run in a temporary directory. Only the
port of the broker and the wall-clock times differ from what the picture shows.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import headrace

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "images" / "terminal.svg"
SHOWN_ADDRESS: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 60
PROGRAM: Final = """\
from headrace import App

app = App("127.0.0.1:9092")

@app.worker("orders", group="billing", retry=2, dead_letter=True)
def bill(order: dict):
    if order["total"] < 0:
        raise ValueError("negative total")
    print("billed order", order["id"], flush=True)
"""
COMMANDS: Final = (
    "cat billing.py",
    "headrace dev &",
    "headrace topic create orders -p 3",
    "headrace run billing.py:app &",
    """printf '{"id": 1, "total": 9.5}\\n{"id": 2, "total": -1}\\n' | headrace produce orders -k alice""",
    "headrace group lag billing",
    "headrace dlq list",
    "headrace dlq redrive orders",
)
PRODUCE: Final = 4
"""Index in COMMANDS of the command after which the recording waits for the dead letter."""
WIDTH, LINE_HEIGHT, TOP, LEFT = 880, 19, 44, 16
SECONDS_PER_STEP: Final = 1.6
STYLE: Final = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }
.prompt { fill: #7ee787 }
.frame { fill: #0d1117; stroke: #30363d }
.step { animation: appear 0.2s both }
@keyframes appear { from { opacity: 0 } to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .step { animation: none } }"""


class Step(NamedTuple):
    """A command and the lines that appear after it."""

    command: str
    output: tuple[str, ...]


def record() -> list[Step]:
    """Run the commands and return them with their output."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "billing.py").write_text(PROGRAM)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        broker = _start("headrace dev --listen 127.0.0.1:0", directory, environment, "broker")
        running = [broker]
        try:
            address = _address(directory / "broker.out")
            environment["HEADRACE_BOOTSTRAP"] = address
            (directory / "billing.py").write_text(PROGRAM.replace(SHOWN_ADDRESS, address))
            steps = []
            for number, command in enumerate(COMMANDS):
                if command.startswith("headrace dev"):
                    steps.append(Step(command, ()))
                elif command.endswith("&"):
                    running.append(
                        _start(command.removesuffix(" &"), directory, environment, "worker")
                    )
                    _wait(directory / "worker.err", "bill starts")
                    steps.append(Step(command, ()))
                else:
                    steps.append(
                        Step(command, tuple(_run(command, directory, environment, address)))
                    )
                if number == PRODUCE:
                    _wait(directory / "worker.out", "billed")
                    _wait(directory / "worker.err", "dead-letter topic")
                    _wait_committed(address)
                    printed = _lines((directory / "worker.out").read_text(), address)
                    steps.append(Step("", tuple(line for line in printed if "billed" in line)))
            return steps
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(TIMEOUT_S)


def _start(
    command: str, directory: Path, environment: Mapping[str, str], name: str
) -> subprocess.Popen[bytes]:
    with (
        (directory / f"{name}.out").open("wb") as out,
        (directory / f"{name}.err").open("wb") as err,
    ):
        return subprocess.Popen(
            command.split(), cwd=directory, env=environment, stdout=out, stderr=err
        )


def _run(
    command: str, directory: Path, environment: Mapping[str, str], address: str
) -> Iterator[str]:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}")
    yield from _lines(done.stdout, address)


def _lines(text: str, address: str) -> Iterator[str]:
    for line in text.rstrip("\n").splitlines():
        yield line.replace(address, SHOWN_ADDRESS).rstrip()


def _address(path: Path) -> str:
    found = re.search(r"kafka=(\S+)", _wait(path, "ready"))
    if found is None:
        raise RuntimeError(f"no address in {path.read_text()!r}")
    return found[1]


def _wait(path: Path, text: str) -> str:
    """Return the text of a file as soon as it contains `text`."""
    deadline = time.monotonic() + TIMEOUT_S
    while text not in (content := path.read_text()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} does not say {text!r}: {content}")
        time.sleep(0.05)
    return content


def _wait_committed(address: str) -> None:
    """Return when the worker's group has committed everything."""
    deadline = time.monotonic() + TIMEOUT_S
    with headrace.Admin(address) as admin:
        while not (lag := admin.lag("billing")) or any(lag.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the group has not committed everything: {lag}")
            time.sleep(0.05)


def picture(steps: list[Step]) -> str:
    """Return the recording as an SVG image in which each command appears after the one before."""
    rows: list[str] = []
    line = 0
    for number, step in enumerate(steps):
        delay = f'style="animation-delay:{number * SECONDS_PER_STEP:.1f}s"'
        rows.append(f'<g class="step" {delay}>')
        if step.command:
            text = f'<tspan class="prompt">$</tspan> {html.escape(step.command)}'
            rows.append(
                f'<text xml:space="preserve" x="{LEFT}" y="{TOP + line * LINE_HEIGHT}">{text}</text>'
            )
            line += 1
        for output in step.output:
            if output:
                y = TOP + line * LINE_HEIGHT
                rows.append(
                    f'<text xml:space="preserve" x="{LEFT}" y="{y}">{html.escape(output)}</text>'
                )
            line += 1
        rows.append("</g>")
    height = TOP + line * LINE_HEIGHT
    circles = "".join(
        f'<circle cx="{20 + 18 * place}" cy="18" r="5" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    label = "A worker bills an order; a bad order goes to the dead-letter topic and is sent back"
    return "\n".join(
        [
            "<!-- @generated by tools/record_terminal.py; do not edit -->",
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">',
            f"<style>{STYLE}\n</style>",
            f'<rect class="frame" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
            circles,
            *rows,
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Record and write the picture."""
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(picture(record()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
