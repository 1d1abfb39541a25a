"""The broker options of Apache Kafka that Headrace does not have: accepted without effect, or refused.

Every option of Kafka is an option of `BrokerConfig`, an alias (`BROKER_ALIASES`), the name of the data directories, or
in one of the two tables here. A test compares them with the list in `kafka_options.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from headrace.errors import ConfigError

KAFKA_VERSION: Final = "4.3"
DIRECTORY_OPTIONS: Final = frozenset({"log.dir", "log.dirs"})
"""The options that the command line reads itself."""

_OPTION_OF_LISTENER: Final = re.compile(
    r"listener\.name\.([A-Za-z0-9_-]+)\.(?:(?:plain|gssapi|oauthbearer|scram-sha-(?:256|512))\.)?(.+)"
)
_JAAS_OF_LISTENER: Final = re.compile(
    r"listener\.name\.[A-Za-z0-9_-]+\.(plain|scram-sha-(256|512))\.sasl\.jaas\.config"
)
_LOGIN_OF_LISTENER: Final = re.compile(
    r"listener\.name\.[A-Za-z0-9_-]+\.(gssapi|oauthbearer)\.sasl\.jaas\.config"
)
_OWN_CONTROLLER: Final = "one broker is its own controller, and keeps its metadata in SQLite"


@dataclass(frozen=True, slots=True)
class Refused:
    """An option of Kafka that Headrace refuses, except for values without effect."""

    reason: str
    """The reason, and what to use in place of the option."""
    harmless: tuple[str, ...] = ("",)
    """The values that are accepted without effect."""


def _table(rows: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in rows.items() for name in names.split()}


ACCEPTED: Final[Mapping[str, str]] = _table(
    {
        _OWN_CONTROLLER: (
            "broker.heartbeat.interval.ms broker.session.timeout.ms controlled.shutdown.enable "
            "controller.listener.names "
            "controller.performance.always.log.threshold.ms controller.performance.sample.period.ms "
            "controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers "
            "controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms "
            "controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes "
            "controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms "
            "controller.quorum.retry.backoff.ms "
            "controller.quorum.voters controller.quota.window.num controller.quota.window.size.seconds "
            "controller.socket.timeout.ms early.start.listeners initial.broker.registration.timeout.ms "
            "internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes "
            "internal.metadata.max.batch.size.in.bytes metadata.log.dir "
            "metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms "
            "metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms "
            "metadata.max.retention.bytes metadata.max.retention.ms sasl.mechanism.controller.protocol "
            "server.max.startup.time.ms"
        ),
        "one broker has no replicas to copy from, to elect or to move": (
            "alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds "
            "auto.leader.rebalance.enable "
            "leader.imbalance.check.interval.seconds "
            "num.replica.alter.log.dirs.threads num.replica.fetchers "
            "replica.selector.class replica.socket.receive.buffer.bytes replica.socket.timeout.ms "
            "replication.quota.window.num replication.quota.window.size.seconds request.timeout.ms "
            "socket.connection.setup.timeout.max.ms "
            "socket.connection.setup.timeout.ms "
            "unclean.leader.election.interval.ms"
        ),
        "a leader responds to a follower as soon as it has records": "replica.fetch.min.bytes",
        "one event loop serves all connections, with buffers that have bounds of their own": (
            "background.threads num.io.threads num.network.threads num.recovery.threads.per.data.dir "
            "queued.max.request.bytes queued.max.requests socket.listen.backlog.size socket.receive.buffer.bytes "
            "socket.send.buffer.bytes"
        ),
        "the coordinators of groups and transactions run in the broker's event loop": (
            "add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms "
            "group.consumer.regex.refresh.interval.ms group.coordinator.append.linger.ms "
            "group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes group.coordinator.threads "
            "offsets.commit.timeout.ms offsets.load.buffer.size offsets.retention.check.interval.ms "
            "transaction.abort.timed.out.transaction.cleanup.interval.ms "
            "transaction.state.log.load.buffer.size"
        ),
        "requests that wait, and producers that expire, are looked at when they are due": (
            "delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests "
            "producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests "
            "share.fetch.purgatory.purge.interval.requests"
        ),
        "the batches of a group commit are synced when they are written, and checkpoints are written with them": (
            "log.flush.offset.checkpoint.interval.ms log.flush.scheduler.interval.ms "
            "log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms"
        ),
        "one step of compaction runs at a time, with bounds of its own": (
            "log.cleaner.dedupe.buffer.size log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size "
            "log.cleaner.io.max.bytes.per.second log.cleaner.threads"
        ),
        "a data directory that fails goes out of service at once": "log.dir.failure.timeout.ms",
        "the number of partitions of a request has a bound of its own (max.topics.per.request)": (
            "max.request.partition.size.limit"
        ),
        "the broker does not report metrics through classes of Java": (
            "kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters metrics.num.samples "
            "metrics.recording.level metrics.sample.window.ms telemetry.max.bytes"
        ),
        "references such as ${file:/path} are understood without a provider": "config.providers",
        "there are no share groups (KIP-932)": (
            "group.share.assignment.interval.ms group.share.assignors group.share.delivery.count.limit "
            "group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms "
            "group.share.max.assignment.interval.ms group.share.max.delivery.count.limit "
            "group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks "
            "group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions "
            "group.share.max.size group.share.min.assignment.interval.ms group.share.min.delivery.count.limit "
            "group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks "
            "group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms "
            "group.share.partition.max.record.locks group.share.persister.class.name "
            "group.share.record.lock.duration.ms group.share.session.timeout.ms share.coordinator.append.linger.ms "
            "share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms "
            "share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot "
            "share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr "
            "share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms "
            "share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes "
            "share.coordinator.threads share.coordinator.write.timeout.ms"
        ),
        "there are no streams groups (KIP-1071)": (
            "group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms "
            "group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms "
            "group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size "
            "group.streams.max.standby.replicas group.streams.min.assignment.interval.ms "
            "group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms "
            "group.streams.num.standby.replicas group.streams.session.timeout.ms"
        ),
        "there is no tiered storage; remote.log.storage.system.enable=true is refused": (
            "follower.fetch.last.tiered.offset.enable log.local.retention.bytes log.local.retention.ms "
            "remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms "
            "remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms "
            "remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second "
            "remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds "
            "remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second "
            "remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds "
            "remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms "
            "remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms "
            "remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size "
            "remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name "
            "remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix "
            "remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks remote.log.reader.threads "
            "remote.log.storage.manager.class.name remote.log.storage.manager.class.path "
            "remote.log.storage.manager.impl.prefix"
        ),
        "there is no Kerberos; GSSAPI among sasl.enabled.mechanisms is refused": (
            "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules "
            "sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor"
        ),
        "the broker does not log in anywhere": (
            "sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class "
            "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds "
            "sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter "
            "sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.assertion.algorithm "
            "sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds "
            "sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include "
            "sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub "
            "sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file "
            "sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file "
            "sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret "
            "sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url"
        ),
        "the keys of tokens are read again at growing intervals": (
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"
        ),
        "no rule of Headrace looks at the scope of a token": "sasl.oauthbearer.scope.claim.name",
        "there are no delegation tokens": (
            "delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms "
            "delegation.token.max.lifetime.ms "
            "delegation.token.secret.key"
        ),
        "OpenSSL does the work of TLS, with stores in PEM": (
            "ssl.allow.dn.changes ssl.allow.san.changes ssl.endpoint.identification.algorithm ssl.keymanager.algorithm "
            "ssl.keystore.password ssl.protocol ssl.provider ssl.secure.random.implementation "
            "ssl.trustmanager.algorithm ssl.truststore.password"
        ),
        "records of offsets are not compressed": "offsets.topic.compression.codec",
        "both group protocols are served": "group.coordinator.rebalance.protocols",
        "only APIs and features that are stable are served": (
            "unstable.api.versions.enable unstable.feature.versions.enable"
        ),
    }
)
"""Options of Kafka without effect in Headrace, each with the reason."""

_IN_JAVA: Final = "it names a class of Java, and what that class would forbid would be allowed"
_ACLS_INSTEAD: Final = f"{_IN_JAVA}; use ACLs and quotas"

REFUSED: Final[Mapping[str, Refused]] = {
    "alter.config.policy.class.name": Refused(_ACLS_INSTEAD),
    "client.quota.callback.class": Refused(_ACLS_INSTEAD),
    "cordoned.log.dirs": Refused(
        "new partitions go where the fewest are; leave the directory out of log.dirs"
    ),
    "create.topic.policy.class.name": Refused(_ACLS_INSTEAD),
    "log.cleaner.enable": Refused(
        "topics with cleanup.policy=compact are always compacted", ("true",)
    ),
    "max.connection.creation.rate": Refused(
        "the rate of new connections has fixed bounds (docs/reference/limits.md)", ("2147483647",)
    ),
    "max.connections.per.ip.overrides": Refused(
        "all addresses have one limit, max.connections.per.ip"
    ),
    "principal.builder.class": Refused(
        "it names a class of Java; ssl.principal.mapping.rules makes names of certificates",
        ("", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
    ),
    "process.roles": Refused(
        "this is a broker: expected broker, or broker,controller",
        ("broker", "broker,controller", "controller,broker"),
    ),
    "remote.log.storage.system.enable": Refused("there is no tiered storage", ("false",)),
    "sasl.jaas.config": Refused(
        "say whose it is: listener.name.<name>.plain.sasl.jaas.config has the users of PLAIN; users of SCRAM are made "
        "with headrace user create"
    ),
    "sasl.oauthbearer.jwt.validator.class": Refused(
        f"{_IN_JAVA}",
        (
            "",
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
            "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",
        ),
    ),
    "sasl.server.callback.handler.class": Refused(
        f"{_IN_JAVA}; passwords are checked against the users of the cluster (headrace user), tokens against "
        "sasl.oauthbearer.jwks.endpoint.url",
        ("", "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"),
    ),
    "security.providers": Refused("it names classes of Java; OpenSSL does the work of TLS"),
    "ssl.engine.factory.class": Refused("it names a class of Java; OpenSSL does the work of TLS"),
    "transaction.partition.verification.enable": Refused(
        "the partitions of transactions are always verified", ("true",)
    ),
    "transaction.two.phase.commit.enable": Refused(
        "there is no two-phase commit with other systems (KIP-939)", ("false",)
    ),
}
"""Options of Kafka that Headrace refuses, because ignoring them would break a promise."""

_REMOVED: Final = re.compile(
    r"zookeeper\.(?!connect$|(connection|session)\.timeout\.ms$|set\.acl$|ssl\.client\.enable$"
    r"|ssl\.endpoint\.identification\.algorithm$|ssl\.keystore\.(location|password)$|ssl\.truststore\.location$).*"
    r"|password\.encoder\..*|inter\.broker\.protocol\.version|log\.message\.format\.version"
    r"|control\.plane\.listener\.name|log\.message\.downconversion\.enable|log\.message\.timestamp\.difference\.max\.ms"
    r"|metadata\.migration\..*|zookeeper\.metadata\.migration\.enable|offsets\.topic\.version|eligible\.leader\..*"
    r"|quota\.(producer|consumer)\.default|delegation\.token\.master\.key|config\.providers\..*"
)
"""Options of releases before 4.0, and options of classes that another option names."""


@cache
def kafka_options() -> frozenset[str]:
    """Return the names of all broker options of Apache Kafka, including internal ones."""
    text = files("headrace.config").joinpath("kafka_options.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def part_foreign(values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide settings into those of Headrace and those of Kafka that have no effect in Headrace.

    Settings of a `server.properties` for a controller in the same process are left out. So are the controller's entries
    in `listeners` and `advertised.listeners`.

    Args:
        values: The values as text, by name.

    Returns:
        The settings of Headrace, including unknown names; and the reasons why the other settings have no effect, by
        name.

    Raises:
        ConfigError: An option of Kafka has a value that Headrace refuses.
    """
    controllers = _controller_listeners(values)
    ours: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for name, text in values.items():
        reason = accepted_reason(name)
        listener = _listener_of(name)
        if listener in controllers:
            reason = _OWN_CONTROLLER
        if reason is not None:
            ignored[name] = reason
        elif (refused := refused_option(name)) is None:
            ours[name] = text
        elif text.strip().lower() in map(str.lower, refused.harmless):
            ignored[name] = refused.reason
        else:
            raise refusal(name, refused)
    for name in ("listeners", "advertised.listeners"):
        if name in ours:
            ours[name] = _without(ours[name], controllers)
    return ours, ignored


def refusal(name: str, refused: Refused) -> ConfigError:
    """Return the error for an option of Kafka that is refused. The message does not contain the value."""
    return ConfigError(f"{name} is not supported: {refused.reason}")


def accepted_reason(name: str) -> str | None:
    """Return why an option of Kafka has no effect in Headrace; None for any other name.

    Args:
        name: The name. It may be a listener's option: `listener.name.<listener>.<option>`.
    """
    if _LOGIN_OF_LISTENER.fullmatch(name):
        return "the broker does not log in with this mechanism; users of SCRAM are made with headrace user create"
    reason = ACCEPTED.get(_plain(name))
    if reason is None and _REMOVED.fullmatch(name):
        return f"Apache Kafka {KAFKA_VERSION} has no such option any more"
    return reason


def refused_option(name: str) -> Refused | None:
    """Return the refusal of an option of Kafka; None for any other name."""
    return None if _JAAS_OF_LISTENER.fullmatch(name) else REFUSED.get(_plain(name))


def _plain(name: str) -> str:
    """Return the option that `listener.name.<listener>.[<mechanism>.]<option>` sets for one listener."""
    match = _OPTION_OF_LISTENER.fullmatch(name)
    return match[2] if match else name


def _listener_of(name: str) -> str | None:
    match = _OPTION_OF_LISTENER.fullmatch(name)
    return match[1].upper() if match else None


def _controller_listeners(values: Mapping[str, str]) -> set[str]:
    names = values.get("controller.listener.names", "CONTROLLER").split(",")
    return {name.strip().upper() for name in names} - {""}


def _without(listeners: str, names: set[str]) -> str:
    """Return a list of listeners without the listeners of some names."""
    entries = [entry.strip() for entry in listeners.split(",")]
    return ",".join(each for each in entries if each.partition("://")[0].upper() not in names)
