"""Write `tools/schemas/*.txt` from the message definitions inside Apache Kafka's jars.

Needed only when a new API or a new Kafka release is taken up; its output is committed:

    python tools/import_schemas.py kafka-clients-4.3.0.jar kafka-group-coordinator-4.3.0.jar \
        kafka-transaction-coordinator-4.3.0.jar
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent / "schemas"
HEADER = """\
# Derived from the message definitions of Apache Kafka 4.3.0, Apache License 2.0 (see NOTICE).
# name: type versions ?versions-where-null-is-allowed #tag =default
"""
APIS = [
    *(
        "Produce",
        "Fetch",
        "ListOffsets",
        "Metadata",
        "OffsetCommit",
        "OffsetFetch",
        "FindCoordinator",
        "JoinGroup",
    ),
    *(
        "Heartbeat",
        "LeaveGroup",
        "SyncGroup",
        "DescribeGroups",
        "ListGroups",
        "SaslHandshake",
        "ApiVersions",
    ),
    *(
        "CreateTopics",
        "DeleteTopics",
        "DeleteRecords",
        "InitProducerId",
        "OffsetForLeaderEpoch",
        "DescribeConfigs",
    ),
    *(
        "AlterConfigs",
        "DescribeLogDirs",
        "SaslAuthenticate",
        "CreatePartitions",
        "DeleteGroups",
        "OffsetDelete",
    ),
    *("IncrementalAlterConfigs", "DescribeCluster", "DescribeTopicPartitions"),
    *("DescribeClientQuotas", "AlterClientQuotas"),
    "ListConfigResources",
    *("DescribeAcls", "CreateAcls", "DeleteAcls"),
    *("DescribeUserScramCredentials", "AlterUserScramCredentials"),
    *("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers", "TxnOffsetCommit"),
    *("DescribeProducers", "DescribeTransactions", "ListTransactions"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "ShareGroupHeartbeat"),
    *("AlterReplicaLogDirs", "ElectLeaders"),
    *("AlterPartitionReassignments", "ListPartitionReassignments"),
    *("DescribeQuorum", "UpdateFeatures", "UnregisterBroker"),
]
RECORDS = {
    "consumer_protocol": ["ConsumerProtocolSubscription", "ConsumerProtocolAssignment"],
    "offset_commit_record": ["OffsetCommitKey", "OffsetCommitValue"],
    "group_metadata_record": ["GroupMetadataKey", "GroupMetadataValue"],
    "transaction_log_record": ["TransactionLogKey", "TransactionLogValue"],
    "consumer_group_metadata_record": ["ConsumerGroupMetadataKey", "ConsumerGroupMetadataValue"],
    "consumer_group_member_record": [
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupMemberMetadataValue",
    ],
    "consumer_group_target_record": [
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataValue",
    ],
    "consumer_group_target_member_record": [
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMemberValue",
    ],
    "consumer_group_current_record": [
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupCurrentMemberAssignmentValue",
    ],
    "consumer_group_regex_record": [
        "ConsumerGroupRegularExpressionKey",
        "ConsumerGroupRegularExpressionValue",
    ],
}
Definition = dict[str, Any]


def snake_case(name: str) -> str:
    """Return `name` the way Python spells it: `IsrNodes` -> `isr_nodes`."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def field_lines(field: Definition, common: dict[str, Definition], depth: int) -> list[str]:
    """Return the line of one field, followed by those of the struct it introduces."""
    versions = field.get("versions", field.get("taggedVersions"))  # some say it once
    words = [f"{snake_case(field['name'])}:", field["type"], versions]
    if "nullableVersions" in field:
        words.append("?" + field["nullableVersions"])
    if "tag" in field:
        if field["taggedVersions"] != versions:
            raise ValueError(f"{field['name']} is tagged in some of its versions only")
        words.append(f"#{field['tag']}")
    default = field.get("default")
    if default not in {None, ""}:
        text = str(default).lower()
        words.append(f"={int(text, 0) if re.fullmatch('-?(0x[0-9a-f]+|[0-9]+)', text) else text}")
    children = field.get("fields") or []
    if not children:
        # The first use of a common struct spells it out, later ones refer to it by name.
        children = common.pop(field["type"].removeprefix("[]"), {}).get("fields", [])
    lines = ["  " * depth + " ".join(words)]
    for child in children:
        lines += field_lines(child, common, depth + 1)
    return lines


def message_text(message: Definition) -> str:
    """Return the schema of one message: its head, then its fields."""
    kind = message["type"] if message["type"] in {"request", "response"} else "data"
    # Of a stored record, the key is the type that precedes it; client blobs have none.
    api_key = message.get("apiKey", "-")
    flexible = message["flexibleVersions"]
    head = f"{kind} {message['name']} {api_key} {message['validVersions']} flexible {flexible}"
    common = {struct["name"]: struct for struct in message.get("commonStructs", [])}
    lines = [head]
    for field in message["fields"]:
        lines += field_lines(field, common, 1)
    return "\n".join(lines) + "\n"


OWN_FIELDS = {
    "FetchRequest": "  headrace_filter: bytes 12+ #26738\n",
    "ListOffsetsRequest": "  headrace_delayed: bool 6+ #26738\n",
    "ListOffsetsResponse": (  # in the partition, which comes last
        "      headrace_delayed: HeadraceDelayed 6+ #26738\n"
        "        pending: int64 6+ =-1\n"
        "        earliest_due_ms: int64 6+ =-1\n"
    ),
    "AddPartitionsToTxnResponse": "  headrace_start_ms: int64 4+ #26738 =-1\n",
    "WriteTxnMarkersRequest": "    headrace_start_ms: int64 1+ #26738 =-1\n",  # in the marker
    "ApiVersionsResponse": "  headrace_extensions: []string 3+ #26738\n",
    "JoinGroupResponse": "  headrace_stop: bool 6+ #26738\n",
    "HeartbeatResponse": "  headrace_stop: bool 4+ #26738\n",
    "ConsumerGroupHeartbeatResponse": "  headrace_stop: bool 0+ #26738\n",
    "LeaveGroupRequest": (
        "  headrace_stop: HeadraceStop 4+ #26738\n"
        "    member_id: string 4+\n"
        "    group_instance_id: string 4+ ?4+ =null\n"
        "    timeout_ms: int32 4+ =-1\n"
        "    again: bool 4+\n"
    ),
    "LeaveGroupResponse": (
        "  headrace_stop: HeadraceStopped 4+ #26738\n"
        "    state: int8 4+\n"
        "    error_code: int16 4+\n"
        "    member_id: string 4+\n"
        "    told: bool 4+\n"
        "    remaining_ms: int32 4+ =-1\n"
    ),
}
"""Tagged fields that Headrace adds to messages. Other clients and brokers skip tags that they do not know."""


def main(jars: list[str]) -> None:
    """Read every definition in the jars and write the schemas of `APIS` and `RECORDS`."""
    definitions: dict[str, Definition] = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for path in archive.namelist():
                if re.fullmatch(r"common/message/\w+\.json", path):
                    text = re.sub(r"^\s*//.*$", "", archive.read(path).decode(), flags=re.MULTILINE)
                    definitions[Path(path).stem] = json.loads(text)
    modules = {snake_case(api): [f"{api}Request", f"{api}Response"] for api in APIS} | RECORDS
    for module, names in modules.items():
        texts = [message_text(definitions[name]) + OWN_FIELDS.get(name, "") for name in names]
        SCHEMAS.joinpath(f"{module}.txt").write_text("\n".join([HEADER, *texts]))
    print(f"{len(modules)} schemas in {SCHEMAS}")


if __name__ == "__main__":
    main(sys.argv[1:])
