"""The owner of a data directory: the file `meta.properties`, with Kafka's names in it.

The metadata refer to a data directory by its own id: its path may change, and another directory may take its path.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import StorageError
from headrace.ports import FileSystem

META_FILE: Final = "meta.properties"
DIRECTORY_ID: Final = "directory.id"
_FORMAT: Final = "1"


def read_meta(files: FileSystem) -> dict[str, str] | None:
    """Return the properties in the file, None if the directory was never used."""
    content = files.read_file(META_FILE)
    if content is None:
        return None
    lines = content.decode("utf-8", "replace").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


def claim(files: FileSystem, *, cluster_id: str, node_id: int, new_id: str) -> str:
    """Check that a data directory belongs to this broker, or claim an unused one.

    Args:
        files: The data directory.
        cluster_id: The cluster to which the directory has to belong.
        node_id: The broker to which the directory has to belong.
        new_id: The id of the directory if it has none yet; "" if it needs none.

    Returns:
        The id of the directory.

    Raises:
        StorageError: The directory belongs to another cluster or broker, or has a newer format.
    """
    wanted = {"version": _FORMAT, "cluster.id": cluster_id, "node.id": str(node_id)}
    found = read_meta(files)
    if found is None:
        found = wanted
    for key, value in wanted.items():
        if found.get(key) != value:
            raise StorageError(
                f"{META_FILE} says {key}={found.get(key)}, this broker has {value}. The data directory belongs to "
                "another broker or version: give this one its own directory."
            )
    directory_id = found.get(DIRECTORY_ID, "")
    if found is wanted or (not directory_id and new_id):
        directory_id = directory_id or new_id
        identity = {DIRECTORY_ID: directory_id} if directory_id else {}
        text = "".join(f"{key}={value}\n" for key, value in {**found, **identity}.items())
        files.write_file(META_FILE, text.encode())
    return directory_id
