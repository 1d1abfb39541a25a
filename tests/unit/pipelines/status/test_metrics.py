"""Metrics of pipelines, as text and over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from headrace.errors import ConfigError
from headrace.pipelines.status.metrics import CONTENT_TYPE, MetricsServer, as_text
from headrace.pipelines.status.state import Status

RUNNING = Status(
    "delays",
    "running",
    1,
    0,
    0,
    progress={"batch_id": 4, "duration_ms": 250, "lag_records": 7, "lag_seconds": None},
    restarts=2,
)


def test_only_known_metrics_are_reported() -> None:
    lines = as_text([RUNNING, Status("new", "failed", 1, 0, 0)]).splitlines()

    assert 'headrace_pipeline_up{pipeline="delays"} 1' in lines
    assert 'headrace_pipeline_up{pipeline="new"} 0' in lines
    assert 'headrace_pipeline_restarts_total{pipeline="delays"} 2' in lines
    assert 'headrace_pipeline_batch_duration_seconds{pipeline="delays"} 0.25' in lines
    assert 'headrace_pipeline_lag_records{pipeline="delays"} 7' in lines
    assert not [line for line in lines if line.startswith("headrace_pipeline_lag_seconds")]
    assert "# TYPE headrace_pipeline_restarts_total counter" in lines


def test_the_server_returns_metrics_over_http() -> None:
    with MetricsServer("127.0.0.1:0", lambda: [RUNNING]) as server:
        base = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert answer.read().decode() == as_text([RUNNING])
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{base}/")
        caught.value.close()


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1:many", ":1", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="metrics"):
        MetricsServer(listen, list)
