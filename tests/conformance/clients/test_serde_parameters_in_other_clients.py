"""Admin clients of other projects set and show the longest parameters of a topic's serde."""

from __future__ import annotations

import json
import warnings

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

import headrace
from headrace.registers import PARAMETERS_LIMIT

with warnings.catch_warnings():
    # kafka-python reads its schemas the old way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import ConfigResource as PythonResource
    from kafka.admin import KafkaAdminClient

ANSWER_S = 30
LONGEST = json.dumps({"schema": "x" * (PARAMETERS_LIMIT - 14)})


def test_the_longest_parameters_pass_through_other_clients() -> None:
    with headrace.Broker() as broker:
        address = broker.listen()
        admin = AdminClient({"bootstrap.servers": address})
        config = {"headrace.serde": "theirs", "headrace.serde.parameters": LONGEST}
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(ANSWER_S)
        (described,) = admin.describe_configs([ConfigResource("topic", "t")]).values()
        assert described.result(ANSWER_S)["headrace.serde.parameters"].value == LONGEST
        python = KafkaAdminClient(bootstrap_servers=address)
        try:
            assert LONGEST in str(python.describe_configs([PythonResource("TOPIC", "t")]))
        finally:
            python.close()
            del admin
