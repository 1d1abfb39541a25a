"""Prepare this checkout: the virtual environment, and the programs that Python packages cannot bring.

Run by the Makefile with the system's Python, standard library only. `prepare.py run` makes what `make run` needs,
`prepare.py test` what `make test` needs, `prepare.py docs` what `make docs` needs. Each step is skipped when it is done
already. If something cannot be installed, the script prints the command that would install it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
ACCELERATOR = ROOT / "accel"
COMPILERS = [*os.environ.get("CC", "").split()[:1], "cc", "gcc", "clang"]
MINIMUM_PYTHON = (3, 11)
MINIMUM_JAVA = 17

EXTRAS = {"run": "demo", "test": "dev", "docs": "docs"}
PROGRAMS = {
    # name: (Debian packages, what needs it)
    "java": (["default-jre-headless"], "Spark, and the Java clients among the tests"),
    "mvn": (
        ["maven"],
        "the Java clients, Spark's own Kafka connector and Apache Kafka among the tests",
    ),
    "node": (["nodejs", "npm"], "the tests of kafkajs, Kinesis and DynamoDB"),
    "npm": (["npm"], "the tests of kafkajs, Kinesis and DynamoDB"),
    "kcat": (["kcat"], "the kcat conformance tests"),
}
NEEDED = {"run": ["java"], "test": ["java", "mvn", "node", "npm", "kcat"], "docs": []}


def say(text: str) -> None:
    """Print one line of progress on standard error."""
    print(f"prepare: {text}", file=sys.stderr, flush=True)


def java_version() -> int | None:
    """Return the major version of the Java on the path (or of JAVA_HOME), or None."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        return None
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', text)
    return int(match.group(1)) if match else None


def present(program: str) -> bool:
    """Return whether a program is there in a usable version."""
    if program == "java":
        return (java_version() or 0) >= MINIMUM_JAVA
    return shutil.which(program) is not None


def install_programs(missing: list[str]) -> None:
    """Install Debian packages when this is root on a machine with apt."""
    packages = sorted({package for program in missing for package in PROGRAMS[program][0]})
    say(f"installing {' '.join(packages)} (root and apt-get are here)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", *packages],
        env=environment,
        check=False,
        stdout=sys.stderr,
    )


def prepare_programs(purpose: str) -> None:
    """See that the programs are there: install what can be installed, say what is missing."""
    missing = [program for program in NEEDED[purpose] if not present(program)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        install_programs(missing)
        missing = [program for program in missing if not present(program)]
    for program in missing:
        packages, reason = PROGRAMS[program]
        version = f" (version {MINIMUM_JAVA} or later)" if program == "java" else ""
        say(f"missing: {program}{version}, needed by {reason}")
        say(
            f"  Debian, Ubuntu: sudo apt-get install {' '.join(packages)}    macOS: brew install {program}"
        )
    if "java" in missing and purpose == "run":
        sys.exit(
            "prepare: `make run` ends with a Spark pipeline and Spark needs Java; install it and run again."
        )


def prepare_environment(purpose: str) -> None:
    """Create `.venv` with the pinned packages, unless exactly that has been done."""
    extra = EXTRAS[purpose]
    inputs = [ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    stamps = {name: VENV / f".prepared-{name}" for name in EXTRAS.values()}
    done = [
        name for name, stamp in stamps.items() if stamp.exists() and stamp.read_text() == digest
    ]
    if extra in done or (extra == "demo" and "dev" in done):
        return
    if not PYTHON.exists():
        say(f"creating {VENV.name} with Python {sys.version.split()[0]}")
        result = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False)
        if result.returncode != 0:
            sys.exit(
                "prepare: no virtual environment could be made; on Debian: sudo apt-get install python3-venv"
            )
    say(f"installing headrace[{extra}] and the packages it needs (pinned in constraints.txt)")
    result = subprocess.run(
        [
            *(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-compile", "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[{extra}]"),
        ],
        check=False,
    )
    if result.returncode != 0:
        sys.exit("prepare: the packages could not be installed; what pip says above is the reason")
    # pip would compile on one core. Some packages bring files of other Pythons, which cannot be compiled.
    subprocess.run(
        [
            *(str(PYTHON), "-m", "compileall", "-qq", "-j", "0", "-x", r"[/\\]tests[/\\]"),
            *map(str, VENV.glob("lib/python*/site-packages")),
        ],
        check=False,
    )
    stamps[extra].write_text(digest)


def prepare_accelerator() -> None:
    """Build the accelerator in C, unless these sources are built; the tests go without it where that fails."""
    sources = [
        path
        for path in sorted(ACCELERATOR.rglob("*"))
        if path.suffix in {".c", ".h", ".py", ".toml"}
    ]
    sources = [path for path in sources if "build" not in path.relative_to(ACCELERATOR).parts]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = VENV / ".prepared-accel"
    if stamp.exists() and stamp.read_text() == digest:
        return
    if not any(map(shutil.which, COMPILERS)):
        say("no C compiler: the accelerator is not built, its tests are skipped")
        say(
            "  Debian, Ubuntu: sudo apt-get install gcc libc6-dev python3-dev    macOS: xcode-select --install"
        )
        return
    say("building the accelerator (accel/)")
    shutil.rmtree(
        ACCELERATOR / "build", ignore_errors=True
    )  # what is left of another version of Python
    result = subprocess.run(
        [
            *(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--force-reinstall", str(ACCELERATOR)),
        ],
        check=False,
    )
    if result.returncode != 0:
        say(
            "the accelerator was not built, its tests are skipped; what pip says above is the reason"
        )
        return
    stamp.write_text(digest)


def prepare_class_paths() -> None:
    """Fetch the Java class paths that tests need; the tests fetch what is missing, or say why they cannot."""
    sys.path.insert(0, str(ROOT))
    from tools.fetch_java import (  # noqa: PLC0415 - the script runs without the package path
        JavaUnavailableError,
        kafka_class_path,
        zookeeper_class_path,
    )

    for name, fetch in (("Apache Kafka", kafka_class_path), ("ZooKeeper", zookeeper_class_path)):
        try:
            fetch()
        except JavaUnavailableError as error:
            say(f"{name} is not there, the tests that need it are skipped or fail: {error}")


def main() -> None:
    """Prepare for the purpose named on the command line."""
    purpose = sys.argv[1] if len(sys.argv) == 2 else ""
    if purpose not in EXTRAS:
        sys.exit(f"usage: prepare.py {'|'.join(EXTRAS)}")
    if sys.version_info < MINIMUM_PYTHON:
        sys.exit(
            f"prepare: Headrace needs Python {'.'.join(map(str, MINIMUM_PYTHON))} or later, this is"
            f" {sys.version.split()[0]}; name a newer one: make PYTHON=python3.12 {purpose}"
        )
    prepare_programs(purpose)
    prepare_environment(purpose)
    if purpose == "test":
        prepare_accelerator()
        prepare_class_paths()


if __name__ == "__main__":
    main()
