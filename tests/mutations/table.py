"""Defences of each area: the text that is removed, and the tests of which one must fail then."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutation(NamedTuple):
    """One defence and its removal."""

    area: str
    defence: str
    path: str
    """The file, below src/headrace."""
    old: str
    """The text, which the file has once."""
    new: str
    """The text that replaces `old`."""
    tests: tuple[str, ...]
    """Files, or tests; one of them has to fail."""


MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "log",
        "a batch whose checksum is wrong is refused",
        "core/log/append/validation.py",
        "        and crc32c(memoryview(records)[CRC_START:]) == crc\n",
        "",
        ("tests/unit/core/log/append/test_validation.py",),
    ),
    Mutation(
        "recovery",
        "a torn tail is cut off",
        "core/log/recovery/loader.py",
        "                self._cut(segment, scan.position)\n",
        "",
        (
            "tests/unit/core/log/recovery/test_recovery.py",
            "tests/unit/core/log/test_partition_log.py",
        ),
    ),
    Mutation(
        "recovery",
        "damage below the recovery point is not taken for a torn tail",
        "core/log/recovery/loader.py",
        "                self._check_torn(segment, scan.position, scan.fault)\n",
        "",
        (
            "tests/unit/core/log/recovery/test_recovery.py",
            "tests/unit/core/log/test_partition_log.py",
        ),
    ),
    Mutation(
        "compaction",
        "compaction ends at the last stable offset",
        "core/log/cleaning/cleanable.py",
        "min(log.high_watermark, log.last_stable_offset, log.synced_offset, log.keep_from)",
        "min(log.high_watermark, log.synced_offset, log.keep_from)",
        (
            "tests/unit/core/log/cleaning/test_compaction.py",
            "tests/unit/core/log/producers/test_transactions.py",
        ),
    ),
    Mutation(
        "compaction",
        "compaction writes nothing anew that is not synced",
        "core/log/cleaning/cleanable.py",
        "min(log.high_watermark, log.last_stable_offset, log.synced_offset, log.keep_from)",
        "min(log.high_watermark, log.last_stable_offset, log.keep_from)",
        (
            "tests/unit/core/log/cleaning/test_compaction.py",
            "tests/unit/core/log/producers/test_transactions.py",
        ),
    ),
    Mutation(
        "coordinators",
        "an answer waits until what it shows is durable",
        "core/coordinator/runtime.py",
        "        if self.high_watermark >= self.end_offset:\n            return response\n",
        "        return response\n",
        ("tests/unit/core/coordinator/test_runtime.py",),
    ),
    Mutation(
        "coordinators",
        "a partition is free only when its owner has given it up",
        "core/coordinator/consumer/turn.py",
        "        return owner is None or owner in (self.member_id, self._identity.replaces)\n",
        "        return owner is None or bool(owner)\n",
        ("tests/unit/core/coordinator/consumer/test_consumer_group.py",),
    ),
    Mutation(
        "coordinators",
        "a member of an old generation commits nothing",
        "core/coordinator/any_group/fencing.py",
        "    if error is ErrorCode.NONE and committer.epoch != group.generation.number:\n"
        "        error = ErrorCode.ILLEGAL_GENERATION\n",
        "",
        ("tests/unit/core/coordinator/any_group/test_offsets.py",),
    ),
    Mutation(
        "coordinators",
        "a classic group rejoins for added partitions",
        "core/coordinator/classic/membership.py",
        "if error is ErrorCode.NONE and has_new_partitions(shard, group):",
        "if error is ErrorCode.NONE and has_new_partitions(shard, group) and not group:",
        ("tests/unit/core/coordinator/any_group/test_group_soft_state.py",),
    ),
    Mutation(
        "transactions",
        "a producer of an old epoch is refused by the partition",
        "core/log/producers/producer_state.py",
        '            raise _fenced(producer_id, known_epoch, "batch", epoch)\n',
        "            return None\n",
        ("tests/unit/core/log/producers/test_producer_state.py",),
    ),
    Mutation(
        "transactions",
        "offsets of a transaction are pending until its marker",
        "core/coordinator/state/shard.py",
        "            self.offsets.replay_pending(record)\n",
        "            self.offsets.replay(record.commit)\n",
        ("tests/unit/core/coordinator/any_group/test_transactional_offsets.py",),
    ),
    Mutation(
        "producer sequence",
        "a batch that is repeated is not appended again",
        "core/log/producers/producer_state.py",
        "                    return repeated\n",
        "                    return None\n",
        (
            "tests/unit/core/log/producers/test_producer_state.py",
            "tests/unit/broker/handlers/test_produce.py",
        ),
    ),
    Mutation(
        "producer sequence",
        "a gap in the sequence is refused",
        "core/log/producers/producer_state.py",
        "        if sequence != expected and sequence >= 0:\n",
        "        if sequence != expected and sequence < -1:\n",
        ("tests/unit/core/log/producers/test_producer_state.py",),
    ),
    Mutation(
        "fetch isolation",
        "readers of committed records stop at the last stable offset",
        "broker/replication/partition.py",
        "            return self.last_stable_offset\n",
        "            return self.log.high_watermark\n",
        ("tests/unit/broker/coordinators/test_transactions_in_partitions.py",),
    ),
    Mutation(
        "fetch isolation",
        "consumers read no record above the high watermark",
        "broker/replication/partition.py",
        "        return self.log.high_watermark\n\n    def read(",
        "        return self.log.log_end_offset\n\n    def read(",
        ("tests/unit/broker/handlers/test_fetch.py",),
    ),
    Mutation(
        "clients' commit",
        "only what the program has come back from is committed by itself",
        "clients/consumer/commits.py",
        "        finished = {name: self._assigned[name].finished for name in wanted}\n",
        "        finished = {name: self._assigned[name].position() for name in wanted}\n",
        ("tests/unit/clients/consumer/test_commits.py",),
    ),
    Mutation(
        "clients' commit",
        "a commit is not sent again for a partition that has gone",
        "clients/consumer/commits.py",
        "            if now is not None and not (kept and now.joined == who.joined):\n",
        "            if now is not None and not kept and now is who:\n",
        ("tests/unit/clients/consumer",),
    ),
    Mutation(
        "workers' commit",
        "a position stays before the first record that is not finished",
        "workers/core/scheduler.py",
        "        return next(iter(self.open), self.next_offset)\n",
        "        return self.next_offset\n",
        (
            "tests/property/test_worker_scheduler.py",
            "tests/unit/workers/running/test_processing.py",
        ),
    ),
    Mutation(
        "delay",
        "a new schedule's mark is at the synced end of the partition",
        "core/scheduled/schedule.py",
        "            self._write_mark(Mark(self._target_committed), now_ms)\n",
        "            self._write_mark(Mark(self.target.log_end_offset), now_ms)\n",
        ("tests/property/test_delayed_delivery_crashes.py",),
    ),
    Mutation(
        "delay",
        "a record that waits is not readable before it is due",
        "core/scheduled/schedule.py",
        "        return None if entry is None else int(ENTRY.unpack(entry)[0])\n",
        "        return None if entry is None else 0\n",
        ("tests/unit/broker/test_scheduled_records.py",),
    ),
    Mutation(
        "ttl",
        "blocks of which all records have expired are passed over",
        "core/log/reading/selective_read.py",
        "        if end == position:\n            return None\n",
        "        return None\n",
        ("tests/unit/core/log/reading/test_selective_read.py",),
    ),
    Mutation(
        "ttl",
        "records that have expired are left out of what is sent as it lies",
        "core/log/reading/selective_read.py",
        "        if first is None:\n            return found\n",
        "        return found\n",
        (
            "tests/unit/core/log/reading/test_selective_read.py",
            "tests/property/test_expiry_and_tags.py",
        ),
    ),
    Mutation(
        "quotas",
        "a producer is charged for its bytes",
        "broker/dispatch.py",
        "        pause_ms = throttling.charge(PRODUCER_BYTE_RATE, client, request_bytes, now_ms)\n",
        "        pause_ms = 0\n",
        ("tests/unit/broker/quotas/test_quotas.py",),
    ),
    Mutation(
        "quotas",
        "a consumer's fetch is bounded",
        "broker/quotas/throttling.py",
        "        return _LimitedFetch(self, client, fetch, self._time)\n",
        "        return fetch\n",
        ("tests/unit/broker/quotas/test_quotas.py",),
    ),
    Mutation(
        "ACL",
        "a produce asks for the right to write",
        "broker/handlers/produce.py",
        "                refusal = error\n",
        "                refusal = None if error else None\n",
        ("tests/unit/broker/access",),
    ),
    Mutation(
        "ACL",
        "a fetch asks for the right to read",
        "broker/handlers/fetch.py",
        "        if services.authorizer.active and not services.permissions.allows(\n"
        "            self._context, Operation.READ, ResourceType.TOPIC, topic.topic\n"
        "        ):\n",
        "        if not topic:\n",
        ("tests/unit/broker/access",),
    ),
    Mutation(
        "SASL",
        "a request before the login ends the connection",
        "broker/access/authentication.py",
        "        raise CloseConnection(UNAUTHENTICATED)\n",
        "        return\n",
        ("tests/unit/broker/access",),
    ),
    Mutation(
        "SASL",
        "a wrong proof is refused (SCRAM)",
        "security/scram.py",
        "        if not hmac.compare_digest(scram.hash(client_key), credential.stored_key):\n",
        "        if not client_key:\n",
        ("tests/unit/security",),
    ),
    Mutation(
        "SASL",
        "the nonce is that of the exchange (SCRAM)",
        "security/scram.py",
        "        if not hmac.compare_digest(attributes[1][1].encode(), self._nonce.encode()):\n",
        "        if not attributes:\n",
        ("tests/unit/security",),
    ),
    Mutation(
        "SASL",
        "a client checks the signature of the broker (SCRAM)",
        "security/scram.py",
        "        if not hmac.compare_digest(signature, self._signature):\n",
        "        if not signature:\n",
        ("tests/unit/security",),
    ),
    Mutation(
        "TLS",
        "a client checks the host's name in the certificate",
        "clients/drivers/tls.py",
        '    elif config.ssl_endpoint_identification_algorithm == "none":\n',
        "    else:\n",
        (
            "tests/unit/clients/test_security.py",
            "tests/unit/clients/drivers/test_secured_drivers.py",
        ),
    ),
    Mutation(
        "TLS",
        "a listener with ssl.client.auth asks for certificates",
        "server/tls/context.py",
        "    context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]\n",
        "    context.verify_mode = ssl.CERT_NONE\n",
        ("tests/unit/server/test_tls_context.py", "tests/unit/server/test_tls_connection.py"),
    ),
    Mutation(
        "Kinesis leases",
        "a lease is taken only if its beat is as it was seen",
        "kinesis/leases/writes.py",
        "    if (row.epoch, row.beat) == (seen.epoch, seen.beat):\n",
        "    if row.epoch == seen.epoch:\n",
        ("tests/unit/kinesis/leases",),
    ),
    Mutation(
        "Kinesis leases",
        "a renewal is of the lease's owner and epoch",
        "kinesis/leases/writes.py",
        "    if (row.owner, row.epoch) != (owner, epoch):\n        return None\n    if row.beat >= beat:\n",
        "    if row.beat >= beat:\n",
        ("tests/property/test_lease_simulation.py",),
    ),
    Mutation(
        "bridge",
        "the previous owner of a shard is fenced",
        "kinesis/bridge/shard_copy.py",
        'return f"__bridge.{self.name}.{stream}.{shard}"',
        'return f"__bridge.{self.name}.{stream}.{shard}.{id(self)}"',
        ("tests/integration/kinesis/bridge/test_shard_copied_once.py",),
    ),
    Mutation(
        "bridge",
        "positions are read as far as they are committed",
        "kinesis/bridge/positions.py",
        '            isolation_level="read_committed",\n',
        '            isolation_level="read_uncommitted",\n',
        ("tests/integration/kinesis/bridge",),
    ),
    Mutation(
        "Spark sink",
        "a batch that is claimed is not claimed anew",
        "spark/sink/exactly_once.py",
        "        elif not _is_divided_as(divided, writes):\n",
        "        elif not writes:\n",
        ("tests/unit/spark/sink", "tests/property/test_sink_once.py"),
    ),
    Mutation(
        "Spark sink",
        "an older batch than the claimed one is refused",
        "spark/sink/exactly_once.py",
        "        if claim is not None and claim.offset > once.version + 1:\n",
        "        if claim is not None and claim.offset < 0:\n",
        ("tests/unit/spark/sink", "tests/property/test_sink_once.py"),
    ),
    Mutation(
        "archive",
        "a batch that the table has is not appended again",
        "spark/archive/delta.py",
        "            if snapshot.batch >= commit.batch:\n",
        "            if snapshot.batch < -1:\n",
        ("tests/unit/spark/archive",),
    ),
    Mutation(
        "archive",
        "of two writers of one batch one fails",
        "spark/archive/delta.py",
        "                if paths <= {file.path for file in snapshot.files}:\n",
        "                if paths is not None:\n",
        ("tests/unit/spark/archive",),
    ),
)
