"""The audit log: who authenticated, who was refused what, who changed what.

Events go through the journal under names that begin with `audit_`, each with the principal and the host, so that a
shell can route them on their own (`server/log.py` gives them a logger of their own, and bounds those that clients can
cause at will, for each client). `docs/guides/audit-log.md` lists the names; they do not change.
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
"""What stands for a value that is nobody's business."""

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
"""What an administrator can do, as `audit_changed` names it in its field `what`."""


class Audit:
    """Writes down what matters to whoever asks later who did it."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def authenticated(self, session: Session, mechanism: str | None = None) -> None:
        """Somebody has proved who they are; `mechanism` is SASL's name for how, or TLS."""
        self._journal.info(
            "audit_authentication_succeeded", **_who(session), mechanism=mechanism or "unknown"
        )

    def authentication_failed(
        self, session: Session, mechanism: str, reason: str, *, user: str | None = None
    ) -> None:
        """Somebody has failed to prove it.

        Args:
            session: The connection.
            mechanism: SASL's name for how it was tried, or TLS.
            reason: Why it failed, for the operator: nothing of what was sent besides the name, and no secret.
            user: Who the client claimed to be.
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
        """A request was refused because of who sent it."""
        self._journal.warning(
            "audit_authorization_denied",
            **_where(context),
            operation=operation.name,
            resource=resource_type.name,
            name=name,
        )

    def changed(self, context: RequestContext, what: Change, **fields: object) -> None:
        """An administrator's request was carried out; never left out of the log, however many there are.

        But for offsets that are set from outside of a group: a consumer that belongs to none does so all the time.
        """
        event = "audit_offsets_set" if what == "offsets_set" else "audit_changed"
        self._journal.info(event, **_where(context), what=what, **fields)


def shown_settings(
    settings: Mapping[str, str | None], options: Mapping[str, Option]
) -> dict[str, str | None]:
    """Return settings as they may be written down: of those that are secret, or unknown, only the names."""
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
