"""Recording a server: the library that is loaded into the server, and the recorded events.

The recorder (recorder.c) and the driver of the workload append to one file. The driver writes an acknowledgement when
it has arrived, so after everything that the server did for it. The events before the acknowledgement in the file must
make the acknowledged data durable.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("recorder.c")
CACHE = ROOT / ".cache" / "crash"
MAGIC = 0x4852
SECOND = "second"
"""The second log directory. It is below the first directory, so that one recording has both."""
_HEADER = struct.Struct("<IHHqqq")


class Kind(IntEnum):
    """The kinds of events. Those of the server have the numbers of recorder.c."""

    OPEN = 1
    CLOSE = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    RENAME = 7
    UNLINK = 8
    MKDIR = 9
    RMDIR = 10
    ALLOCATE = 11
    UNEXPECTED = 12
    MARK = 64


class Event(NamedTuple):
    kind: Kind
    number: int
    position: int
    detail: int
    data: bytes

    @property
    def path(self) -> str:
        return os.fsdecode(self.data)

    @property
    def paths(self) -> tuple[str, str]:
        old, new = self.data.split(b"\0")
        return os.fsdecode(old), os.fsdecode(new)


def build_recorder() -> Path:
    """Compile the recorder if it does not exist. Skips the test if that is impossible."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the recorder with")
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the recorder needs Linux")
    library = CACHE / "recorder.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        temporary = CACHE / f"recorder-{os.getpid()}.so"
        command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run(
            [*command, "-o", str(temporary), str(SOURCE), "-ldl", "-lpthread"], check=True
        )
        temporary.replace(library)
    return library


def recorder_environment(data: Path, recording: Path) -> dict[str, str]:
    """Return the environment variables with which a child process records its operations below `data`."""
    return {
        "LD_PRELOAD": str(build_recorder()),
        "HEADRACE_RECORD_ROOT": str(data),
        "HEADRACE_RECORD_LOG": str(recording),
    }


class Marker:
    """Writes events of the driver between the events of the server. Thread-safe."""

    def __init__(self, recording: Path) -> None:
        self._descriptor = os.open(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def note(self, **fields: Any) -> None:
        data = json.dumps(fields).encode()
        event = _HEADER.pack(_HEADER.size + len(data), Kind.MARK, MAGIC, 0, 0, 0) + data
        with self._lock:
            written = os.write(self._descriptor, event)
        assert written == len(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)


def read_events(recording: Path) -> Iterator[Event]:
    """Yield the events of a recording, up to the event during which the server was killed."""
    data = recording.read_bytes()
    position = 0
    while position + _HEADER.size <= len(data):
        size, kind, magic, number, place, detail = _HEADER.unpack_from(data, position)
        after = position + size
        if magic != MAGIC or after > len(data):
            return
        if after + _HEADER.size <= len(data) and data[after + 6 : after + 8] != b"\x52\x48":
            return  # an incomplete event
        yield Event(Kind(kind), number, place, detail, data[position + _HEADER.size : after])
        position = after
