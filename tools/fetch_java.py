"""Fetches the Java class paths of Apache Kafka and of ZooKeeper's server, once, into `.cache/java/`.

Maven resolves `pom.xml` and `zookeeper.xml` in `tests/conformance/java`, and refuses artifacts with another checksum.
From then on nothing is fetched until these files change. Tests and benchmarks call `kafka_class_path` and
`zookeeper_class_path`. As a command it prints the class paths:

    python tools/fetch_java.py
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KAFKA = ROOT / "tests" / "conformance" / "java" / "pom.xml"
ZOOKEEPER = KAFKA.with_name("zookeeper.xml")
CACHE = ROOT / ".cache" / "java"
FETCH_TIMEOUT_S = 600


class JavaUnavailableError(Exception):
    """Java, Maven or the artifacts are missing; the message says what to install."""


def java_command() -> str:
    """The `java` to run.

    Raises:
        JavaUnavailableError: None is installed.
    """
    java = shutil.which("java")
    if java is None:
        raise JavaUnavailableError(
            "java is not installed (Debian: apt-get install default-jre-headless)"
        )
    return java


def kafka_class_path(version: str | None = None) -> str:
    """The class path of Apache Kafka's server, clients and tools, fetched if it is not there yet.

    Args:
        version: Kafka's version; None is the one that most tests compare with.

    Raises:
        JavaUnavailableError: Java or Maven is not installed, or Maven could not resolve the artifacts.
    """
    options = [] if version is None else [f"-Dkafka.version={version}"]
    return _class_path(KAFKA, "kafka_*.jar", "" if version is None else f"-{version}", options)


def zookeeper_class_path(version: str | None = None) -> str:
    """The class path of ZooKeeper's server, fetched if it is not there yet.

    Args:
        version: ZooKeeper's version; None is the one that most tests run.

    Raises:
        JavaUnavailableError: Java or Maven is not installed, or Maven could not resolve the artifacts.
    """
    options = [] if version is None else [f"-Dzookeeper.version={version}"]
    suffix = "-zookeeper" if version is None else f"-zookeeper-{version}"
    return _class_path(ZOOKEEPER, "zookeeper-3*.jar", suffix, options)


def _class_path(pom: Path, expected: str, suffix: str, options: Sequence[str] = ()) -> str:
    java_command()
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    directory = CACHE / f"{digest}{suffix}"
    if not directory.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Several test processes may ask at once: one fetches, the others wait and find the result.
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.is_dir():
                _fetch(pom, expected, directory, options)
    return f"{directory}/*"


def _fetch(pom: Path, expected: str, directory: Path, options: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaUnavailableError("mvn is not installed (Debian: apt-get install maven)")
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "-C", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JavaUnavailableError(f"mvn did not end within {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0 or not any(partial.glob(expected)):
        raise JavaUnavailableError(f"mvn could not resolve {pom.name}: {done.stdout[-2000:]}")
    for binding in partial.glob("slf4j-reload4j-*.jar"):
        binding.unlink()  # Kafka 3 brings one; the simple one writes where the tests read
    # Atomic, so that an interrupted fetch never looks like a finished one.
    partial.rename(directory)


if __name__ == "__main__":
    try:
        print(kafka_class_path())
        print(zookeeper_class_path())
    except JavaUnavailableError as error:
        sys.exit(str(error))
