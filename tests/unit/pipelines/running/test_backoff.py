"""Final failures, the delays before restarts, and the summaries of failures."""

from __future__ import annotations

import pytest

from headrace.pipelines.running.backoff import RestartBackoff, is_final, summary

PYTHON_FAILURE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 9, in main
    process()
headrace.spark.source.offsets.DataLossError: offsets 120 to 399 of flights-2 were removed
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:999)
"""


def test_delays_double_up_to_a_limit_and_end() -> None:
    backoff = RestartBackoff(first_s=1, longest_s=10, attempts=6)

    assert [backoff.wait_s(n) for n in range(1, 8)] == [1, 2, 4, 8, 10, 10, None]


def test_zero_attempts_never_restart() -> None:
    assert RestartBackoff(attempts=0).wait_s(1) is None


@pytest.mark.parametrize(
    "failure",
    [
        PYTHON_FAILURE,
        "AnalysisException: [UNRESOLVED_COLUMN] there is no x",
        "StreamingQueryException: ConfigError: there is no topic flights (option subscribe)",
    ],
)
def test_a_permanent_failure_is_final(failure: str) -> None:
    assert is_final(failure)


@pytest.mark.parametrize(
    "failure",
    [
        "headrace.errors.TransportError: cannot connect to 127.0.0.1:9092",
        "Python worker exited unexpectedly (crashed)",
        "java.io.IOException: No space left on device",
        "MyAnalysisExceptionally: is another word",
    ],
)
def test_a_transient_failure_is_not_final(failure: str) -> None:
    assert not is_final(failure)


def test_the_summary_is_the_innermost_cause() -> None:
    assert summary(PYTHON_FAILURE) == "offsets 120 to 399 of flights-2 were removed"
    assert summary("[A] one\nJVM stacktrace:\nmore") == "[A] one"
    assert (
        summary("x\nTraceback (most recent call last):\n  f\nValueError: bad\n")
        == "ValueError: bad"
    )
    assert "JVM has ended" in summary("Py4JError: An error occurred while calling o159.isActive")
    assert summary("") == "it failed without a message"
