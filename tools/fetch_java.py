"""Fetches the Java class path of Apache Kafka's server, clients and tools, once, into `.cache/java/`.

Maven resolves `tests/conformance/java/pom.xml`; from then on nothing is fetched until that file changes. Tests and
benchmarks call `kafka_class_path`; as a command it prints the class path:

    python tools/fetch_java.py
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POM = ROOT / "tests" / "conformance" / "java" / "pom.xml"
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
    java_command()
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    directory = CACHE / (digest if version is None else f"{digest}-{version}")
    if not directory.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Several test processes may ask at once: one fetches, the others wait and find the result.
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.is_dir():
                _fetch(directory, version)
    return f"{directory}/*"


def _fetch(directory: Path, version: str | None) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaUnavailableError("mvn is not installed (Debian: apt-get install maven)")
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    if version is not None:
        command.append(f"-Dkafka.version={version}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JavaUnavailableError(f"mvn did not end within {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0 or not any(partial.glob("kafka_*.jar")):
        raise JavaUnavailableError(f"mvn could not resolve {POM.name}: {done.stdout[-2000:]}")
    for binding in partial.glob("slf4j-reload4j-*.jar"):
        binding.unlink()  # Kafka 3 brings one; the simple one writes where the tests read
    # Atomic, so that an interrupted fetch never looks like a finished one.
    partial.rename(directory)


if __name__ == "__main__":
    try:
        print(kafka_class_path())
    except JavaUnavailableError as error:
        sys.exit(str(error))
