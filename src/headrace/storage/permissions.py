"""The permissions of files in a data directory: for its owner, and for its group if the directory allows that.

ACLs limit what clients read, but the files hold the same records for every account of the machine that can open them.
So files and directories are created for their owner only. An operator who wants a group to read them, for example for
backups, opens the data directory to that group (chmod 750). Then the group can read what is created inside, too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

_GROUP: Final = 0o070
_GROUP_READS: Final = 0o050
_OTHERS: Final = 0o007
_OTHERS_PASS: Final = 0o001
_TOO_WIDE: Final = stat.S_IWGRP | _OTHERS


class Modes(NamedTuple):
    """The permissions of new files and directories in a data directory."""

    file: int
    directory: int


PRIVATE: Final = Modes(0o600, 0o700)
GROUP_READABLE: Final = Modes(0o640, 0o750)


def modes_in(directory: str | Path) -> Modes:
    """Return the permissions for a data directory's content, from the permissions of the directory itself."""
    mode = Path(directory).stat().st_mode
    if not mode & _OTHERS and mode & _GROUP == _GROUP_READS:
        return GROUP_READABLE
    return PRIVATE


def make_private_directory(path: Path, mode: int = PRIVATE.directory) -> None:
    """Create a directory and its parents with these permissions. Directories that exist stay as they are."""
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode)
        except FileNotFoundError:
            make_private_directory(path.parent, mode)
            path.mkdir(mode)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no directory")


def exposure(directory: str | Path) -> str | None:
    """Return the command that closes a data directory that others can read or change; None if it is closed.

    A directory above that others cannot enter closes the data directory as well, whatever the permissions inside.

    This process may use a directory of another user, such as the volume of a container, by the permissions of the
    group. Then the command changes nothing for the group.
    """
    path = Path(directory).resolve()
    found = path.stat()
    mode = found.st_mode
    is_own = os.geteuid() in {0, found.st_uid}
    wide = mode & (_TOO_WIDE if is_own else _OTHERS)
    if wide & _OTHERS and not all(each.stat().st_mode & _OTHERS_PASS for each in path.parents):
        wide &= ~_OTHERS
    if not wide:
        return None
    return (
        f"chmod 700 {path} (or 750, for a group that may read it)"
        if is_own
        else f"chmod o-rwx {path}"
    )
