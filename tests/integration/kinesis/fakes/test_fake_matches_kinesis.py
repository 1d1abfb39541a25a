"""The fake of Kinesis and kinesis-local answer the same probes. For each difference the table gives the right
answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import pytest

from headrace.testing.kinesis import FakeAws, Limits
from tests.integration.kinesis.fakes.kinesis_probes import (
    FIRST,
    PROBES,
    SECOND,
    THIRD,
    six_reads_at_once,
)
from tests.integration.kinesis.fakes.peers import Answers, KinesisPeer, answers


class Difference(NamedTuple):
    """A difference between kinesis-local and AWS.

    Attributes:
        fake: What the fake says.
        local: What kinesis-local says.
        because: Why the fake is believed to be as AWS is; nothing here was tried on AWS.
    """

    fake: Any
    local: Any
    because: str


INVALID: Final = "InvalidArgumentException"
MALFORMED: Final = "ValidationException"
MODEL: Final = "the constraints of the model of the API are answered with ValidationException"

DIFFERENCES: Final = {
    "a_bad_iterator": Difference(INVALID, "500", "the API names this error for GetRecords"),
    "a_number_of_another_shard": Difference(
        INVALID, "ok", "users report that it did not come from this stream; kinesalite has it too"
    ),
    "a_partition_key_of_257_characters": Difference(MALFORMED, INVALID, MODEL),
    "a_request_of_501_records": Difference(MALFORMED, "ok", MODEL),
    "a_split_at_the_edge": Difference(
        INVALID, "ok", "both halves have hash keys, says the API; kinesalite has it too"
    ),
    "a_split_of_a_closed_shard": Difference(
        INVALID, "ResourceInUseException", "the words of AWS are in kinesalite's issue 109"
    ),
    "a_time_to_come": Difference(INVALID, "ok", "users report what AWS says about it"),
    "far_more_shards_at_once": Difference(
        "LimitExceededException", INVALID, "the API speaks of a limit; no answer of AWS is at hand"
    ),
    "more_than_one_mib": Difference(MALFORMED, INVALID, MODEL),
    "shards_that_were_open_at_the_horizon": Difference(
        [FIRST], [FIRST, SECOND, THIRD], "children were not open when the stream was created"
    ),
    "six_reads_at_once": Difference(
        "ProvisionedThroughputExceededException", "ok", "five reads a second of a shard"
    ),
    "ten_thousand_and_one_records_wanted": Difference(MALFORMED, INVALID, MODEL),
    "the_first_event_of_fan_out": Difference(
        [b"1"],
        "ResponseParserError",
        "kinesis-local sends no event that botocore takes for the first",
    ),
}


@pytest.fixture(scope="module")
def ours() -> Answers:
    """Return the answers of the fake. Only the probe of limits has limits per second."""
    with FakeAws(limits=Limits().unthrottled()) as aws:
        found = asyncio.run(answers("kinesis", aws.endpoint_url, KinesisPeer, PROBES))
    with FakeAws() as aws:
        limited = [six_reads_at_once]
        return found | asyncio.run(answers("kinesis", aws.endpoint_url, KinesisPeer, limited))


@pytest.fixture(scope="module")
def theirs(kinesis_url: str) -> Answers:
    """Return the answers of kinesis-local by probe."""
    return asyncio.run(answers("kinesis", kinesis_url, KinesisPeer, PROBES))


# The client of aiohttp warns about bodies of more than one MiB.
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize("name", [probe.__name__ for probe in PROBES])
def test_both_servers_answer_a_probe_alike(name: str, ours: Answers, theirs: Answers) -> None:
    known = DIFFERENCES.get(name, Difference(ours[name], ours[name], ""))
    assert (ours[name], theirs[name]) == (known.fake, known.local)


def test_every_difference_is_probed() -> None:
    assert set(DIFFERENCES) <= {probe.__name__ for probe in PROBES}
