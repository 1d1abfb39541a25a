"""The model of the disk, and the recorder against a real disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.crash.disk import Disk, Image, Names, read_image
from tests.crash.recording import (
    Event,
    Kind,
    Marker,
    build_recorder,
    read_events,
    recorder_environment,
)

DATA = Path("/data")
CREATE = os.O_CREAT | os.O_RDWR


def event(
    kind: Kind, number: int = 0, position: int = 0, detail: int = 0, data: bytes = b""
) -> Event:
    return Event(kind, number, position, detail, data)


def opened(descriptor: int, path: str, flags: int = CREATE) -> Event:
    return event(Kind.OPEN, descriptor, detail=flags, data=f"/data/{path}".rstrip("/").encode())


def sync(descriptor: int, number: int = 1) -> list[Event]:
    return [
        event(Kind.SYNC_BEGIN, number, detail=descriptor),
        event(Kind.SYNC_END, number),
    ]


def images_after(
    events: list[Event], names: Names = Names.POSIX, start: Image | None = None
) -> list[Image]:
    disk = Disk(DATA, start or {})
    for each in events:
        disk.apply(each)
    return [disk.image_after_power_cut(seed, names) for seed in range(200)]


def test_synced_content_with_a_synced_name_is_always_there() -> None:
    events = [opened(3, "a"), event(Kind.WRITE, 3, data=b"one"), *sync(3)]
    events += [opened(4, ""), *sync(4)]
    assert images_after(events) == [{"a": b"one"}] * 200


def test_a_name_without_a_sync_of_its_directory_may_be_missing() -> None:
    events = [opened(3, "a"), event(Kind.WRITE, 3, data=b"one"), *sync(3)]
    found = images_after(events)
    assert {} in found
    assert {"a": b"one"} in found
    # With a journal any sync makes names durable.
    assert images_after(events, Names.JOURNAL) == [{"a": b"one"}] * 200


def test_a_sync_does_not_cover_batches_that_are_appended_meanwhile() -> None:
    events = [
        event(Kind.OPEN, 3, detail=os.O_RDWR, data=b"/data/a"),
        event(Kind.WRITE, 3, 0, data=b"one"),
        event(Kind.SYNC_BEGIN, 1, detail=3),
        event(Kind.WRITE, 3, 3, data=b"two"),
        event(Kind.SYNC_END, 1),
    ]
    found = {image["a"] for image in images_after(events, start={"a": b""})}
    assert found == {b"one", b"onetwo", b"one\0\0\0"}


def test_a_failed_sync_does_not_raise_the_synced_offset() -> None:
    events = [
        event(Kind.OPEN, 3, detail=os.O_RDWR, data=b"/data/a"),
        event(Kind.WRITE, 3, 0, data=b"one"),
        event(Kind.SYNC_BEGIN, 1, detail=3),
        event(Kind.SYNC_END, 1, detail=-1),
    ]
    assert b"" in {image["a"] for image in images_after(events, start={"a": b""})}


def test_writes_tear_at_sectors_of_the_file() -> None:
    events = [
        event(Kind.OPEN, 3, detail=os.O_RDWR, data=b"/data/a"),
        event(Kind.WRITE, 3, 100, data=b"x" * 1500),
    ]
    start: Image = {"a": b"o" * 100}
    lengths = {len(image["a"] or b"") for image in images_after(events, start=start)}
    assert lengths == {100, 512, 1024, 1536, 1600}
    for image in images_after(events, start=start):
        content = image["a"]
        assert content is not None
        assert content.startswith(b"o" * 100)
        assert len({content[at : at + 1] for at in (512, 700, 1023) if at < len(content)}) <= 1


def test_a_rename_without_a_sync_is_old_or_new_and_never_both() -> None:
    start: Image = {"a": b"old", "a.tmp": b"new"}
    events = [event(Kind.RENAME, data=b"/data/a.tmp\0/data/a")]
    found = images_after(events, start=start)
    assert start in found
    assert {"a": b"new"} in found
    assert all(image in (start, {"a": b"new"}) for image in found)


def test_a_directory_that_was_renamed_keeps_its_content() -> None:
    start: Image = {"t-0": None, "t-0/a": b"one"}
    events = [
        event(Kind.RENAME, data=b"/data/t-0\0/data/t-0-delete"),
        event(Kind.UNLINK, data=b"/data/t-0-delete/a"),
        event(Kind.RMDIR, data=b"/data/t-0-delete"),
    ]
    found = images_after(events, Names.JOURNAL, start)
    assert {} in found
    assert {"t-0-delete": None} in found
    assert {"t-0-delete": None, "t-0-delete/a": b"one"} in found


PROGRAM = """
import os, shutil, sqlite3, sys
from pathlib import Path
root = Path(sys.argv[1])
(root / "sub").mkdir()
fd = os.open(root / "sub" / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.writev(fd, [b"one", b"two"])
os.pwrite(fd, b"three", 0)  # Linux appends
os.ftruncate(fd, 8)
os.write(fd, b"!")
os.posix_fallocate(fd, 0, 20)
os.fdatasync(fd)
os.chdir(root)
fd = os.open("relative", os.O_WRONLY | os.O_CREAT)
os.pwritev(fd, [b"a", b"b"], 3)
os.lseek(fd, 1, os.SEEK_SET)
os.write(fd, b"z")
source = os.open("sub/log", os.O_RDONLY)
os.copy_file_range(source, fd, 4, 0, 10)
os.close(fd)
Path("gone").write_text("x")
os.rename("gone", "sub/there")
Path("old").write_bytes(b"longer than the new content")
with open("old", "wb") as again:
    again.write(b"short")
Path("doomed/deep").mkdir(parents=True)
Path("doomed/deep/file").touch()
shutil.rmtree("doomed")
store = sqlite3.connect("store.sqlite", isolation_level=None)
store.execute("PRAGMA locking_mode = EXCLUSIVE")
store.execute("PRAGMA journal_mode = WAL")
store.execute("CREATE TABLE t (x)")
store.execute("INSERT INTO t VALUES (1)")
Path("after").write_bytes(bytes(100_000))
os._exit(0)
"""


def record(tmp_path: Path, program: str) -> tuple[Path, list[Event]]:
    build_recorder()
    data, recording = tmp_path / "data", tmp_path / "events"
    data.mkdir()
    environment = {**os.environ, **recorder_environment(data, recording)}
    subprocess.run([sys.executable, "-c", program, str(data)], env=environment, check=True)
    return data, list(read_events(recording))


def test_a_replayed_recording_equals_the_files_of_the_program(tmp_path: Path) -> None:
    data, events = record(tmp_path, PROGRAM)
    disk = Disk(data, {})
    for each in events:
        disk.apply(each)
    expected = read_image(data)
    assert {"sub/there", "store.sqlite-wal", "after"} <= expected.keys()
    assert disk.image() == expected


def test_the_recorder_refuses_writable_shared_mappings(tmp_path: Path) -> None:
    _, events = record(
        tmp_path,
        "import mmap, os, sys; fd = os.open(sys.argv[1] + '/m', os.O_RDWR | os.O_CREAT);"
        "os.ftruncate(fd, 4096); mmap.mmap(fd, 4096)",
    )
    assert Kind.UNEXPECTED in {each.kind for each in events}


def test_half_an_event_ends_the_recording(tmp_path: Path) -> None:
    recording = tmp_path / "events"
    with Marker(recording) as marker:
        marker.note(what="one")
        marker.note(what="two")
    whole = recording.read_bytes()
    recording.write_bytes(whole[:-3])
    assert len(list(read_events(recording))) == 1
    with Marker(recording) as marker:
        marker.note(what="three")
    assert len(list(read_events(recording))) == 1
