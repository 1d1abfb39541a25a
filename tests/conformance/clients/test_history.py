"""The checkers find each kind of fault."""

from __future__ import annotations

from tests.fixtures.history.members import (
    CommitRecord,
    Event,
    GenerationRecord,
    check_deliveries,
    check_ledger,
    parse_ledger,
)


def _events(*said: tuple[str, str, dict[str, object]]) -> list[Event]:
    return [Event(at, member, kind, fields) for at, (member, kind, fields) in enumerate(said)]


def _records(member: str, *offsets: int) -> tuple[str, str, dict[str, object]]:
    return member, "records", {"records": [[0, offset, "v"] for offset in offsets]}


def _committed(member: str, offset: int) -> tuple[str, str, dict[str, object]]:
    return member, "committed", {"offsets": {"0": offset}}


def test_resuming_at_the_commit_is_right():
    events = _events(_records("a", 0, 1), _committed("a", 2), ("a", "left", {}), _records("b", 2))
    assert check_deliveries(events) == []


def test_a_gap_is_found():
    assert check_deliveries(_events(_records("a", 0, 2))) == ["a got 0@2 where 1 was next"]


def test_a_lost_record_is_found_at_a_change_of_owner():
    events = _events(_records("a", 0, 1), _committed("a", 2), _records("b", 3))
    assert check_deliveries(events) == ["b began partition 0 at 3, committed 2"]


def test_a_record_that_was_committed_may_not_come_again():
    events = _events(_records("a", 0, 1), _committed("a", 2), _records("b", 1))
    assert check_deliveries(events) == ["b began partition 0 at 1, committed 2"]


def test_the_last_commit_of_a_killed_member_is_uncertain_but_no_record_may_be_skipped():
    died = [_records("a", 0), _committed("a", 1), _records("a", 1, 2), ("a", "killed", {})]
    for start in (1, 2, 3):
        assert check_deliveries(_events(*died, _records("b", start))) == []
    assert len(check_deliveries(_events(*died, _records("b", 4)))) == 1
    assert len(check_deliveries(_events(*died, _records("b", 0)))) == 1


def test_a_member_that_does_not_report_each_commit_may_have_committed_what_it_received():
    sleeper = [_records("a", 0), _committed("a", 1), _records("a", 1, 2)]
    for start in (1, 2, 3):
        assert check_deliveries(_events(*sleeper, _records("b", start)), commits_told=False) == []
    assert len(check_deliveries(_events(*sleeper, _records("b", 4)), commits_told=False)) == 1
    assert len(check_deliveries(_events(*sleeper, _records("b", 0)), commits_told=False)) == 1


def test_two_owners_in_a_generation_are_found():
    shared = GenerationRecord(3, {"a": (("t", 0),), "b": (("t", 0),)})
    assert check_ledger([shared]) == ["generation 3: ('t', 0) has owners ['a', 'b']"]


def test_a_generation_that_goes_back_is_found():
    assert len(check_ledger([GenerationRecord(3, {}), GenerationRecord(2, {})])) == 1


def test_a_commit_of_a_former_owner_is_found():
    first = GenerationRecord(1, {"a": (("t", 0),)})
    second = GenerationRecord(2, {"b": (("t", 0),)})
    commit = CommitRecord("t", 0, 5, "a")
    assert check_ledger([first, commit, second]) == []
    assert check_ledger([first, second, commit]) == [
        "a committed t-0@5 in generation 2 without owning it"
    ]


def test_a_commit_of_what_is_being_given_up_is_right():
    first = GenerationRecord(1, {"a": (("t", 0), ("t", 1))})
    second = GenerationRecord(2, {"a": (("t", 1),), "b": ()})
    third = GenerationRecord(3, {"a": (("t", 1),), "b": (("t", 0),)})
    commit = CommitRecord("t", 0, 5, "a")
    assert check_ledger([first, second, second, commit, third]) == []
    assert len(check_ledger([first, second, third, commit])) == 1
    assert len(check_ledger([first, second, CommitRecord("t", 0, 5, "b")])) == 1


def test_a_commit_as_kafka_writes_it_is_read():
    key = b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x07"
    value = b"\x00\x03" + (9).to_bytes(8, "big") + b"\xff" * 4 + b"\x00\x02me" + b"\x00" * 8
    assert parse_ledger([(key, value)], "g") == [CommitRecord("t", 7, 9, "me")]
    assert parse_ledger([(key, value)], "other") == []
