"""Tables in object stores: `s3://BUCKET/TABLE` and `gs://BUCKET/TABLE`.

Credentials come from the usual places (environment, `~/.aws`, the machine's role), never from an address. Region and
endpoint come from the address (`?region=...&endpoint=...`), then from the environment. The address that tasks receive
always has region and endpoint, so that all processes use the same store.

A new file is first written to a temporary local file without a name, and uploaded when it is complete. So an object is
complete or does not exist. A killed process leaves nothing behind but, in S3, parts of an upload, which listings of
objects do not show.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import pyarrow.fs as pafs

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.table_location import FoundFile, NewFile

_S3: Final = ("s3", "s3a")
_GOOGLES: Final = ("gs", "gcs")
_RETRY_S: Final = 30
"""Seconds for which Google's client retries. Its own default is a quarter of an hour."""
_PIECE_BYTES: Final = 8 << 20
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_UNSAFE: Final = ("AWS_S3_ALLOW_UNSAFE_RENAME", "AWS_S3_LOCKING_PROVIDER")


class Bucket:
    """A location in a bucket of an object store; see `TableLocation`."""

    def __init__(
        self,
        uri: str,
        system: Any,
        base: str,
        *,
        query: str = "",
        delta_options: Mapping[str, str] | None = None,
        iceberg_options: Mapping[str, str] | None = None,
    ) -> None:
        self.local = False
        self.uri = uri
        self.name = base.rpartition("/")[2]
        self.delta_options: Mapping[str, str] | None = delta_options
        self.iceberg_options: Mapping[str, str] = iceberg_options or {}
        self._query = query
        self._system = system
        self._base = base

    def __str__(self) -> str:
        """Return the address, which opens the same location in another process."""
        return self.uri + self._query

    def __truediv__(self, path: str) -> str:
        """Return the address of an object for other programs."""
        return f"{self.uri}/{path}"

    def find(self, path: str) -> FoundFile | None:
        """Look up an object or prefix; None if it does not exist."""
        with self._errors():
            info = self._system.get_file_info(self._key(path))
        return None if info.type == pafs.FileType.NotFound else self._found(info)

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """Yield all objects below a prefix."""
        below = pafs.FileSelector(self._key(folder), allow_not_found=True, recursive=True)
        with self._errors():
            infos = self._system.get_file_info(below)
        for info in sorted(infos, key=lambda each: each.path):
            if info.type == pafs.FileType.File:
                yield self._found(info)

    def occupied(self) -> bool:
        """Return whether the location has any object."""
        return any(True for _ in self.walk(""))

    def open(self, path: str) -> Any:
        """Open an object for pyarrow."""
        with self._errors():
            return self._system.open_input_file(self._key(path))

    def begin(self, folder: str) -> NewFile:  # noqa: ARG002 - object stores have no folders
        """Start an upload from a temporary local file."""
        return _Upload(self)

    def put(self, source: IO[bytes], path: str) -> None:
        """Upload a file to an object, from the file's present position to its end."""
        with self._errors(), self._system.open_output_stream(self._key(path)) as sink:
            shutil.copyfileobj(source, sink, _PIECE_BYTES)

    def delete(self, path: str) -> None:
        """Delete an object if it exists."""
        try:
            with self._errors():
                self._system.delete_file(self._key(path))
        except FileNotFoundError:
            return

    def sync(self, paths: Collection[str]) -> None:
        """Do nothing: an object is durable when the store has acknowledged it."""

    def check(self) -> None:
        """Check that the bucket exists and that these credentials may read it.

        Raises:
            ConfigError: The bucket does not exist or cannot be read.
        """
        name = self._base.partition("/")[0]
        try:
            info = self._system.get_file_info(name)
        except OSError as error:
            raise ConfigError(f"{self.uri} cannot be read: {error}. {self._hints()}") from None
        if info.type == pafs.FileType.NotFound:
            raise ConfigError(f"{self.uri}: there is no bucket {name}. {self._hints()}")

    def _hints(self) -> str:
        settings = self.delta_options or {}
        if "aws_region" not in settings:
            return "The keys come from the places that the store's own programs use"
        missing = [
            each
            for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            if each not in os.environ
        ]
        keys = f"{' and '.join(missing)} not set, so the keys are those of ~/.aws or of the machine's role"
        endpoint = settings.get("aws_endpoint_url", "AWS")
        return (
            f"Used: {endpoint}, region {settings['aws_region']} (AWS_ENDPOINT_URL, AWS_REGION, or "
            f"?endpoint=URL&region=NAME after the table); keys: {keys if missing else 'AWS_ACCESS_KEY_ID'}"
        )

    def _key(self, path: str) -> str:
        return f"{self._base}/{path}".rstrip("/")

    def _found(self, info: Any) -> FoundFile:
        modified_ms = 0 if info.mtime is None else int(info.mtime.timestamp() * 1000)
        return FoundFile(info.path.removeprefix(f"{self._base}/"), info.size or 0, modified_ms)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors that may be transient as `HeadraceError`, which the caller retries."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise HeadraceError(f"{self.uri}: {error}") from error


class _Upload:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.sink: IO[bytes] = tempfile.TemporaryFile(prefix="headrace-archive-")  # noqa: SIM115 - closed later

    def publish(self, path: str) -> None:
        with self.sink:
            size = self.sink.tell()
            self.sink.seek(0)
            self._bucket.put(self.sink, path)
        found = self._bucket.find(path)
        if found is None or found.size != size:
            raise HeadraceError(f"{self._bucket / path} was not stored completely")

    def abandon(self) -> None:
        self.sink.close()


def bucket(address: str) -> Bucket:
    """Open the location of a store's address, and check once that the store can be reached.

    Raises:
        ConfigError: The address is wrong, or the store cannot be reached. The message has the settings that were used.
    """
    parts = urlsplit(address)
    base = f"{parts.netloc}{parts.path}".strip("/")
    if not parts.netloc or not parts.path.strip("/"):
        raise ConfigError(f"{address} names no table: {parts.scheme}://BUCKET/TABLE")
    make = _maker(parts.scheme)
    found = make(parts.scheme, base, dict(parse_qsl(parts.query)))
    found.check()
    return found


def _maker(scheme: str) -> Callable[[str, str, dict[str, str]], Bucket]:
    if scheme in _S3:
        return _s3
    if scheme in _GOOGLES:
        return _google
    raise ConfigError(f"an archive cannot be in {scheme}://: use a directory, s3:// or gs://")


def _s3(_scheme: str, base: str, given: dict[str, str]) -> Bucket:
    endpoint = given.pop("endpoint", None) or _environment(_ENDPOINTS)
    region = given.pop("region", None) or _environment(_REGIONS)
    uri = f"s3://{base}"
    if given:
        raise ConfigError(f"{uri}: unknown {', '.join(sorted(given))}; known are region, endpoint")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"endpoint {endpoint!r} must begin with http:// or https://")
    for name in _UNSAFE:
        if os.environ.get(name, "false").lower() not in ("", "false", "0"):
            raise ConfigError(
                f"{name} is set, which turns off conditional writes: concurrent commits to an archive would not be "
                "safe. Unset it"
            )
    region = region or ("us-east-1" if endpoint else _region_of(base.partition("/")[0]))
    options = {"aws_region": region, "aws_conditional_put": "etag"}
    of_iceberg = {"s3.region": region}
    query = f"?region={quote(region)}"
    if endpoint:
        options |= {"aws_endpoint_url": endpoint}
        options |= {"aws_allow_http": str(endpoint.startswith("http://")).lower()}
        of_iceberg |= {"s3.endpoint": endpoint}
        query += f"&endpoint={quote(endpoint, safe=':/')}"
    system = pafs.S3FileSystem(region=region, endpoint_override=endpoint)
    return Bucket(uri, system, base, query=query, delta_options=options, iceberg_options=of_iceberg)


def _google(_scheme: str, base: str, given: dict[str, str]) -> Bucket:
    uri = f"gs://{base}"
    if given:
        raise ConfigError(f"{uri}: settings after the table are for s3:// only")
    system = pafs.GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_S))
    return Bucket(uri, system, base)


def _environment(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _region_of(name: str) -> str:
    try:
        return str(pafs.resolve_s3_region(name))
    except OSError as error:
        raise ConfigError(
            f"the region of the bucket {name} is unknown: {error}. Set AWS_REGION, or name the region after the table: "
            f"s3://{name}/TABLE?region=eu-central-1. For a store other than AWS S3 set AWS_ENDPOINT_URL"
        ) from None
