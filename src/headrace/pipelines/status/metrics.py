"""Metrics of pipelines from their statuses, in the text format of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from headrace.errors import ConfigError
from headrace.pipelines.status.state import Status

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STOP_POLL_S: Final = 0.05
PREFIX: Final = "headrace_pipeline"
GAUGES: Final[Mapping[str, tuple[str, str, float]]] = {
    "batch_id": ("batch_id", "Number of the last batch.", 1),
    "batch_input_records": ("input_rows", "Records that the last batch read.", 1),
    "input_records_per_second": ("input_rate", "Records per second that arrived.", 1),
    "processed_records_per_second": (
        "processed_rate",
        "Records per second that the last batch processed.",
        1,
    ),
    "batch_duration_seconds": ("duration_ms", "Duration of the last batch.", 0.001),
    "lag_records": ("lag_records", "Records that were not read yet.", 1),
    "lag_seconds": ("lag_seconds", "Age of the oldest unread record.", 1),
    "state_rows": ("state_rows", "Rows of state that are kept between batches.", 1),
    "state_bytes": ("state_bytes", "Memory of the state.", 1),
}


def as_text(statuses: Iterable[Status]) -> str:
    """Format the metrics of pipelines. Unknown values are left out."""
    known = list(statuses)
    lines = _family(
        "up",
        "Whether the pipeline runs.",
        {each.name: float(each.state in {"running", "starting"}) for each in known},
    )
    lines += _family(
        "restarts_total",
        "Restarts of the pipeline in this run.",
        {each.name: each.restarts for each in known},
        kind="counter",
    )
    for metric, (field, help_text, scale) in GAUGES.items():
        values = {each.name: (each.progress or {}).get(field) for each in known}
        lines += _family(
            metric,
            help_text,
            {name: value * scale for name, value in values.items() if value is not None},
        )
    return "\n".join(lines) + "\n"


def _family(
    metric: str, help_text: str, values: Mapping[str, float], *, kind: str = "gauge"
) -> list[str]:
    name = f"{PREFIX}_{metric}"
    head = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    return head + [f'{name}{{pipeline="{each}"}} {value:.15g}' for each, value in values.items()]


class MetricsServer:
    """An HTTP server for GET /metrics; a context manager."""

    def __init__(self, listen: str, statuses: Callable[[], Iterable[Status]]) -> None:
        """Bind the server.

        Args:
            listen: HOST:PORT; port 0 is any free port.
            statuses: Returns the statuses to report; called for each request.

        Raises:
            ConfigError: The address is wrong or in use.
        """
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"metrics are served at HOST:PORT, not {listen!r}")
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(statuses))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"metrics cannot be served at {listen}: {error}") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(statuses: Callable[[], Iterable[Status]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = as_text(statuses()).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log requests."""

    return Handler
