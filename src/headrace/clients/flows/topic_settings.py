"""The settings for Headrace's clients in a topic's configuration: its partitioner and its serdes.

A name may have parameters, a JSON object: `headrace.serde` has `headrace.serde.parameters`.

Only Headrace's brokers support these configs. A client that may not read configs logs a warning, and uses the defaults,
or the arguments of its producer or consumer.
"""

from __future__ import annotations

from typing import Final

from headrace.clients.flows.cluster import TopicSettings
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.registers import Named

TOPIC: Final = 2
PARTITIONER: Final = "headrace.partitioner"
SERDE: Final = "headrace.serde"
KEY_SERDE: Final = "headrace.key.serde"
PARAMETERS: Final = ".parameters"
"""The suffix of the config for the parameters of each name."""


def topic_settings(state: ClientState, topic: str) -> Flow[TopicSettings]:
    """Return the settings of a topic; retry until a broker has answered, then use the cached ones."""
    backoff = state.backoff()
    while topic not in state.topic_settings:
        try:
            state.topic_settings[topic] = yield from _ask(state, topic)
        except TransportError as error:
            yield backoff.after(error)
    return state.topic_settings[topic]


def _ask(state: ClientState, topic: str) -> Flow[TopicSettings]:
    names = [name + end for name in (PARTITIONER, SERDE, KEY_SERDE) for end in ("", PARAMETERS)]
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=names
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False
    )
    try:
        response = yield from ask(Call(request=request), DescribeConfigsResponse)
    except ApiError:  # a broker that does not speak DescribeConfigs has no such settings
        return TopicSettings()
    values = {
        entry.name: entry.value or None for result in response.results for entry in result.configs
    }
    refused = any(
        result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for result in response.results
    )

    def named(config: str) -> Named | None:
        name = values.get(config)
        if name is None:
            return None
        found = Named(name, values.get(config + PARAMETERS) or "")
        return found if state.objects is None else state.objects.find(topic, config, found)

    return TopicSettings(named(PARTITIONER), named(SERDE), named(KEY_SERDE), may_read=not refused)


def hidden_settings(topic: str, role: str, names: str) -> str:
    """Return the warning of a client that may not read a topic's configuration and has no settings of its own.

    Args:
        topic: The topic.
        role: producer or consumer.
        names: The names of the settings that the program has not set.
    """
    return (
        f"the configuration of topic {topic!r} cannot be read, so its {names} is ignored. Grant DescribeConfigs on the "
        f"topic (headrace acl create --{role} does this), or pass {names} to the {role}"
    )
