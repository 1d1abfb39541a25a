"""Tables of the 31 defects of the published consumer and of the promised features, with the tests for each.

Each test fails on the defect, or without the feature. These tests check that every named test exists.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[3]
LEASES = "tests/integration/kinesis/defects/test_defects_of_leases.py"
READING = "tests/integration/kinesis/defects/test_defects_of_reading.py"
WORKERS = "tests/integration/kinesis/defects/test_defects_of_workers.py"
SHARD_READER = "tests/integration/kinesis/reading/test_shard_reader.py"
ON_THE_FAKE = "tests/integration/kinesis/reading/test_reading_ahead_on_the_fake.py"
SHARDS = "tests/integration/kinesis/reading/test_stream_shards.py"
AHEAD = "tests/unit/kinesis/reading/test_read_ahead.py"
STREAMS = "tests/unit/kinesis/test_streams.py"
BOTH = "tests/integration/kinesis/group/test_handlers_on_topic_and_stream.py"
PROCESSES = "tests/integration/kinesis/test_processes.py::test_processes_lose_no_record_and_no_shard_has_two_owners"

DEFECTS: Final[dict[int, tuple[str, ...]]] = {
    1: (f"{LEASES}::test_a_row_is_created_once_and_never_reset",),
    2: (f"{LEASES}::test_two_processes_of_one_name_do_not_share_a_shard",),
    3: (f"{LEASES}::test_a_member_whose_clock_is_a_minute_ahead_takes_no_owned_lease",),
    4: (f"{LEASES}::test_a_handler_that_runs_longer_than_a_lease_keeps_the_lease",),
    5: (f"{READING}::test_an_idle_shard_costs_a_call_a_second_and_hardly_a_write",),
    6: (f"{READING}::test_reading_continues_when_kinesis_throttles",),
    7: (f"{READING}::test_reading_continues_with_a_new_iterator_when_one_expires",),
    8: (f"{READING}::test_children_are_read_when_their_parent_is_read_to_its_end",),
    9: (f"{READING}::test_a_merged_shard_waits_for_both_its_parents",),
    10: (
        f"{READING}::test_latest_is_the_moment_when_the_group_began",
        f"{READING}::test_shards_of_a_group_that_begins_late_are_read_from_their_beginning",
    ),
    11: (f"{SHARDS}::test_all_pages_of_shards_are_listed_despite_expired_tokens_and_errors",),
    12: (f"{READING}::test_a_stream_that_is_being_rescaled_is_read",),
    13: (f"{LEASES}::test_sequence_numbers_are_compared_as_numbers",),
    14: (f"{LEASES}::test_a_checkpoint_may_be_repeated",),
    15: (f"{LEASES}::test_a_lost_lease_is_reported_once_and_the_consumer_continues",),
    16: (f"{LEASES}::test_leases_of_several_groups_and_streams_share_a_table",),
    17: (f"{LEASES}::test_a_member_keeps_its_lease_when_the_answer_to_a_write_is_lost",),
    18: (f"{LEASES}::test_clean_may_be_repeated_and_releases_the_lease",),
    19: (f"{LEASES}::test_a_checkpoint_resets_the_number_of_owner_changes",),
    20: (f"{READING}::test_a_single_worker_reads_all_shards",),
    21: (f"{LEASES}::test_a_joining_member_gets_its_share_and_no_record_is_handled_twice",),
    22: (f"{LEASES}::test_a_scan_costs_one_query_for_any_number_of_shards",),
    23: (
        f"{WORKERS}::test_a_handler_that_fails_does_not_end_the_worker",
        f"{WORKERS}::test_bytes_that_cannot_be_decoded_become_dead_letters",
    ),
    24: (f"{LEASES}::test_a_short_outage_of_the_store_changes_no_owner",),
    25: (
        f"{WORKERS}::test_a_plain_function_that_blocks_does_not_hold_up_renewals",
        f"{WORKERS}::test_a_process_that_was_halted_longer_than_a_lease_stops_its_handlers",
    ),
    26: (
        f"{WORKERS}::test_a_stopping_worker_transfers_its_shards_at_once",
        f"{LEASES}::test_a_cancelled_run_ends_its_batch_and_releases_the_lease",
    ),
    27: (f"{READING}::test_aggregates_are_divided_and_checkpointed_between_user_records",),
    28: (
        f"{READING}::test_a_group_begins_at_a_time_or_behind_a_sequence_number",
        f"{READING}::test_a_stream_is_named_by_its_arn_and_several_are_read_by_one_worker",
        f"{READING}::test_reading_ahead_is_bounded_and_a_slow_handler_loses_no_record",
        f"{READING}::test_records_are_pushed_by_fan_out",
    ),
    29: (
        "tests/integration/kinesis/test_dynamodb_leases.py::test_a_row_without_optional_attributes_is_read",
        "tests/unit/kinesis/leases/test_lease_rows.py::test_a_row_of_another_shape_is_foreign",
    ),
    30: (f"{LEASES}::test_passed_clients_are_used_and_not_closed",),
    31: (f"{READING}::test_a_record_of_ten_mebibytes_is_read",),
}

FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "Python, no JVM": (f"{STREAMS}::test_apps_on_topics_never_load_aiobotocore",),
    "many shards per worker": DEFECTS[20],
    "lease stores": (
        "tests/integration/kinesis/test_members_over_stores.py::test_members_share_lose_and_continue_shards",
    ),
    "expiry without wall clocks": DEFECTS[3],
    "fenced checkpoint": DEFECTS[15],
    "deadline counted from the send": DEFECTS[25],
    "rebalance when a worker joins": DEFECTS[21],
    "graceful hand-over": DEFECTS[21] + DEFECTS[26],
    "parents before children": DEFECTS[8],
    "merge waits for both parents": DEFECTS[9],
    "SHARD_END recorded": (f"{LEASES}::test_the_end_of_a_shard_is_stored",),
    "children from GetRecords": (f"{SHARD_READER}::test_a_closed_shard_ends_with_its_children",),
    "LATEST safe before the first checkpoint": DEFECTS[10],
    "AT_TIMESTAMP": DEFECTS[28],
    "enhanced fan-out": (f"{READING}::test_records_are_pushed_by_fan_out",),
    "KPL de-aggregation": DEFECTS[27],
    "sub-sequence checkpoints": DEFECTS[27],
    "back-pressure without loss": (
        f"{AHEAD}::test_a_full_queue_stops_reading_and_drops_no_record",
        f"{READING}::test_reading_ahead_is_bounded_and_a_slow_handler_loses_no_record",
    ),
    "an idle shard does not slow others": (
        f"{ON_THE_FAKE}::test_idle_shards_do_not_delay_a_busy_shard",
    ),
    "no stuck shard": (
        f"{READING}::test_a_stalled_reader_is_restarted",
        f"{READING}::test_a_slow_handler_does_not_count_as_a_stalled_reader",
    ),
    "survives one failed heartbeat": DEFECTS[24] + DEFECTS[17],
    "multi-stream": (
        f"{READING}::test_a_stream_is_named_by_its_arn_and_several_are_read_by_one_worker",
    ),
    "metrics": (f"{BOTH}::test_hooks_and_the_context_contain_the_record",),
    "local test kit with resharding": DEFECTS[8],
    "same handler for Kafka": (
        f"{BOTH}::test_records_are_handled_in_order",
        f"{BOTH}::test_batches_are_of_one_partition_and_in_order",
    ),
    "three processes, resharding, a kill and a halt": (PROCESSES,),
}


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_table_has_thirty_one_defects() -> None:
    assert list(DEFECTS) == list(range(1, 32))


@pytest.mark.parametrize("row", [*DEFECTS.values(), *FEATURES.values()])
def test_every_row_names_existing_tests(row: tuple[str, ...]) -> None:
    assert row
    for place in row:
        path, name = place.split("::")
        assert name in functions_of(path), place
