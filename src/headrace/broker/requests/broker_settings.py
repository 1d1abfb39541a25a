"""Checks and changes of the broker's own settings, on behalf of requests."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.services import Services
from headrace.errors import InvalidRequestError


def require_this_broker(services: Services, name: str) -> None:
    """Raise an error if the name of a resource is not the id of this broker.

    Raises:
        InvalidRequestError: The name is another one.
    """
    broker_id = services.settings.config.broker_id
    if name != str(broker_id):
        raise InvalidRequestError(f"broker {name[:40]!r} is not this one, which is {broker_id}")


def check_settings(services: Services, settings: Mapping[str, str], *, all_brokers: bool) -> None:
    """Raise an error if the broker cannot accept these dynamic settings, or a topic could not inherit from them.

    Args:
        services: The services of the broker.
        settings: All dynamic settings of this broker, or of all brokers.
        all_brokers: Whether the settings are those of all brokers.

    Raises:
        ApiError: A setting is invalid.
    """
    layers = services.settings.changed(settings, all_brokers=all_brokers)
    services.topics.check_defaults(layers.effective)


def change_settings(services: Services, settings: Mapping[str, str], *, all_brokers: bool) -> None:
    """Replace the dynamic settings of this broker, or of all brokers. They are durable and in force on return.

    Raises:
        ApiError: A setting is invalid, or the metadata store could not store the settings.
    """
    check_settings(services, settings, all_brokers=all_brokers)
    services.settings.change(
        settings, services.topics.broker_config_changed, all_brokers=all_brokers
    )
