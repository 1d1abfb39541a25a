"""The audit log: authentications, denied operations, and changes by administrators.

Events go through the journal under names that begin with `audit_`. Each has the principal and the host. A shell can
write them to a log of their own: `server/log.py` has a logger for them, and limits the events that a client can cause
at will. `docs/guides/audit-log.md` lists the names, which do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal

from headrace.broker.context import RequestContext
from headrace.broker.session import Session
from headrace.config.options import Option
from headrace.ports import Journal
from headrace.protocol.api_keys import ApiKey

HIDDEN: Final = "[hidden]"
"""The text that replaces a secret value in the audit log."""

Change = Literal[
    "acl_created",
    "acl_deleted",
    "broker_configured",
    "credential_deleted",
    "credential_set",
    "features_updated",
    "group_configured",
    "group_deleted",
    "logger_configured",
    "member_stopped",
    "offsets_deleted",
    "offsets_set",
    "partitions_created",
    "quotas_altered",
    "records_deleted",
    "topic_configured",
    "topic_created",
    "topic_deleted",
    "transaction_ended",
]
"""The kinds of changes, as the event `audit_changed` names them in its field `what`."""


class Audit:
    """Writes the events of the audit log to the journal."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def authenticated(self, session: Session, mechanism: str | None = None) -> None:
        """Report that a client has authenticated. `mechanism` is the name of a SASL mechanism, or TLS."""
        self._journal.info(
            "audit_authentication_succeeded", **_who(session), mechanism=mechanism or "unknown"
        )

    def authentication_failed(
        self, session: Session, mechanism: str, reason: str, *, user: str | None = None
    ) -> None:
        """Report that a client has failed to authenticate.

        Args:
            session: The connection.
            mechanism: The name of the SASL mechanism, or TLS.
            reason: The reason for the operator. It contains no secret, and no input of the client but the name.
            user: The user name that the client claimed; None if it is not known.
        """
        claimed = {} if user is None else {"user": user}
        self._journal.warning(
            "audit_authentication_failed",
            **_who(session),
            mechanism=mechanism,
            reason=reason,
            **claimed,
        )

    def denied(
        self, context: RequestContext, operation: Enum, resource_type: Enum, name: str
    ) -> None:
        """Report that a request was denied, because its principal has no permission."""
        self._journal.warning(
            "audit_authorization_denied",
            **_where(context),
            operation=operation.name,
            resource=resource_type.name,
            name=name,
        )

    def changed(self, context: RequestContext, what: Change, **fields: object) -> None:
        """Report that a request of an administrator was carried out.

        The log never suppresses such an event. The exception are offsets that a client sets without being a member of
        the group: a consumer with assigned partitions does this all the time.
        """
        event = "audit_offsets_set" if what == "offsets_set" else "audit_changed"
        self._journal.info(event, **_where(context), what=what, **fields)


def shown_settings(
    settings: Mapping[str, str | None], options: Mapping[str, Option]
) -> dict[str, str | None]:
    """Return settings for the log. Values of secret or unknown settings are replaced by `HIDDEN`."""
    return {
        name: value if name in options and not options[name].sensitive else HIDDEN
        for name, value in settings.items()
    }


def _who(session: Session) -> dict[str, object]:
    return {
        "principal": str(session.principal),
        "host": session.client_host,
        "listener": session.listener,
    }


def _where(context: RequestContext) -> dict[str, object]:
    header = context.header
    try:
        api = ApiKey(header.api_key).name
    except ValueError:
        api = str(header.api_key)
    return {**_who(context.session), "client_id": header.client_id, "api": api}
