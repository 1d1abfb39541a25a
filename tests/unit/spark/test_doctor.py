"""Each fault of a Spark installation is found and reported with its remedy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.findings import Finding
from headrace.spark import doctor, versions
from headrace.spark.doctor import examined

VERSIONS = {"pyspark": "4.3.0", "pyarrow": "26.0.1"}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Report supported versions, and clear the environment variables of Spark. Tests may change the versions."""
    found = dict(VERSIONS)
    for module in (doctor, versions):
        monkeypatch.setattr(module, "installed", found.get)
    monkeypatch.setattr(doctor, "check_java", lambda: 21)
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    # In an activated environment PySpark starts the first python3 of PATH.
    own = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([own, os.environ["PATH"]]))
    return found


def found_by(name: str) -> Finding:
    return next(each for each in doctor.installation() if each.check == name)


def spark_at(home: Path, *jars: str) -> Path:
    (home / "jars").mkdir()
    for jar in jars:
        (home / "jars" / jar).touch()
    return home


def test_a_complete_installation_has_no_faults(plain: dict[str, str]) -> None:
    findings = list(doctor.installation())
    assert not [each for each in findings if each.state == "fault"]
    assert [each.check for each in findings if each.state == "absent"] == [
        "Kafka connector",
        "extra avro",
        "extra protobuf",
        "extra archive",
    ]
    assert all(each.remedy for each in findings if each.state == "absent")


def test_missing_java_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> int:
        raise ConfigError("Java is not installed. Install one.")

    monkeypatch.setattr(doctor, "check_java", absent)
    assert found_by("Java") == Finding("Java", "fault", "Java is not installed", "Install one.")


@pytest.mark.parametrize(
    ("part", "version", "said"),
    [
        ("pyspark", None, "PySpark is not installed"),
        ("pyspark", "4.1.2", "PySpark 4.1.2, and 4.2 or newer, below 5, is needed"),
        ("pyspark", "5.0.0", "PySpark 5.0.0, and"),
        ("pyarrow", None, "pyarrow is not installed"),
        ("pyarrow", "17.0.0", "pyarrow 17.0.0, 18 or newer"),
    ],
)
def test_unsupported_versions_are_faults(
    plain: dict[str, str], part: str, version: str | None, said: str
) -> None:
    plain.pop(part)
    if version is not None:
        plain[part] = version
    finding = found_by({"pyspark": "PySpark"}.get(part, part))
    assert finding.state == "fault"
    assert finding.found.startswith(said)
    assert "headrace[spark]" in (finding.remedy or "")


@pytest.mark.parametrize(
    ("jars", "said"),
    [
        ((), "but no Spark is there"),
        (("spark-core_2.13-4.2.0.jar",), "Spark 4.2.0, and PySpark is 4.3.0"),
        (("spark-core_2.13-4.3.0.jar",), None),
    ],
)
def test_a_spark_of_another_version_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jars: tuple[str, ...], said: str | None
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_at(tmp_path, *jars)))
    finding = found_by("Spark")
    assert (finding.state == "fault") == (said is not None)
    assert (said or "Spark 4.3.0") in finding.found


def test_workers_without_the_package_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'No module named headrace' >&2\nexit 1\n")
    bare.chmod(0o755)
    for given, said in ((str(bare), "No module named headrace"), ("/no/python", "does not exist")):
        monkeypatch.setenv("PYSPARK_PYTHON", given)
        finding = found_by("workers' Python")
        assert finding.state == "fault"
        assert said in finding.found
        assert sys.executable in (finding.remedy or "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("3.99 0.0.1", ", Python 3.99; this is"),
        ("{}.{} 0.0.1".format(*sys.version_info[:2]), ", which has headrace 0.0.1; this is"),
    ],
)
@pytest.mark.parametrize("by_path", [False, True])
def test_workers_with_another_python_version_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, said: str, *, by_path: bool
) -> None:
    other = tmp_path / "python3"
    other.write_text(f"#!/bin/sh\necho {answer}\n")
    other.chmod(0o755)
    if by_path:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    finding = found_by("workers' Python")
    assert (finding.state, said in finding.found) == ("fault", True)
    how = f"PYSPARK_PYTHON is not set, so workers are python3 of PATH, {other}"
    assert finding.found.startswith(how if by_path else f"PYSPARK_PYTHON is {other}")
    assert (finding.remedy or "").startswith(f"set PYSPARK_PYTHON to {sys.executable}")


def test_workers_without_any_python_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = found_by("workers' Python")
    assert (
        finding.found == "PYSPARK_PYTHON is not set, so workers are python3, which does not exist"
    )


def test_a_module_that_breaks_the_search_for_sources_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise ValueError('no')")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = found_by("format")
    assert finding.state == "fault"
    assert "pyspark_broken cannot be imported (ValueError('no'))" in finding.found


def test_a_format_that_spark_does_not_find_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "iter_modules", lambda: iter(()))
    assert "is not among those" in found_by("format").found


@pytest.mark.parametrize(
    ("version", "state"), [("4.3.0", "ok"), ("4.2.0", "fault"), (None, "absent")]
)
def test_the_connector_has_the_version_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, state: str
) -> None:
    jars = ["spark-core_2.13-4.3.0.jar", "scala-library-2.13.18.jar"]
    if version:
        jars.append(f"spark-sql-kafka-0-10_2.13-{version}.jar")
    monkeypatch.setenv("SPARK_HOME", str(spark_at(tmp_path, *jars)))
    finding = doctor.connector()
    assert finding.state == state
    assert (finding.remedy is None) == (state == "ok")
    wanted = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"
    assert versions.connector_coordinates() == wanted
    assert state == "ok" or wanted in (finding.remedy or "")


def test_a_fault_has_a_text_and_a_remedy() -> None:
    def check() -> str:
        raise doctor.FaultError("it is wrong", "correct it")

    assert examined("x", check) == Finding("x", "fault", "it is wrong", "correct it")


def test_the_doctor_extracts_the_cause_from_sparks_error() -> None:
    text = "[X] long\n  Traceback:\nheadrace.errors.ConfigError: there is no topic t\n"
    assert doctor.essence(text) == "there is no topic t"
    assert doctor.essence("[X] long\nmore") == "[X] long"
    assert doctor.essence("")
