"""Clients that start before the broker are refused while it starts. They never read an empty cluster."""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.protocol.messages.metadata import MetadataRequest
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import running_server

TOPICS = {f"t{number}" for number in range(30)}
RESTARTS = 3


def test_every_metadata_response_has_all_topics_while_the_broker_starts(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        address = (server.host, server.port)
        with WireClient(address) as client:
            for topic in sorted(TOPICS):
                client.create_topic(topic)
                client.produce(topic, 0, build_batch([(None, b"x", (), NOW_MS)]))
        stopped = threading.Event()
        refused: list[OSError] = []
        answers: list[set[str | None]] = []

        def ask() -> None:
            while not stopped.is_set():
                try:
                    with WireClient(address) as client:
                        found = client.request(MetadataRequest(topics=None))
                        answers.append({topic.name for topic in found.topics})
                except OSError as error:
                    refused.append(error)
                    stopped.wait(0.001)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for _ in range(RESTARTS):
                before = len(answers)
                server.kill()
                server.start()
                with WireClient(address) as client:
                    client.ping()
                while len(answers) == before:
                    stopped.wait(0.01)
        finally:
            stopped.set()
            asking.join(20)
        assert refused, "it was asked while it was away"
        assert all(answer >= TOPICS for answer in answers)
        assert len(answers) >= RESTARTS
