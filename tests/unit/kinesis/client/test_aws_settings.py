"""Settings of AWS, and the clients that are opened with them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.client.streams import stream_arguments, stream_name

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"access_key_id": "a"}, "go together"),
        ({"secret_access_key": "a"}, "go together"),
        ({"session_token": "a"}, "session_token belongs to"),
        ({"endpoint_url": "localhost:4567"}, "a URL begins with http:// or https://"),
        ({"read_timeout_ms": 0}, "read_timeout_ms=0 is not allowed: use 1 or more"),
    ],
)
def test_invalid_aws_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AwsSettings(**wrong)


def test_secrets_are_not_shown() -> None:
    shown = repr(
        AwsSettings(access_key_id="AKIA", secret_access_key="hush", session_token="hushed")
    )
    assert "AKIA" in shown
    assert "hush" not in shown


def test_a_passed_client_is_used_and_not_closed() -> None:
    async def main() -> None:
        given: Any = object()
        async with open_client(AwsSettings(clients={"kinesis": given}), "kinesis") as client:
            assert client is given

    asyncio.run(main())


def test_the_error_without_a_region_names_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")

    async def opened(settings: AwsSettings) -> None:
        async with open_client(settings, "kinesis"):
            raise AssertionError

    with pytest.raises(ConfigError, match="set region, AWS_REGION, or a profile that has one"):
        asyncio.run(opened(AwsSettings()))
    with pytest.raises(ConfigError, match=r"config profile \(absent\) could not be found"):
        asyncio.run(opened(AwsSettings(profile="absent", region="eu-central-1")))


def test_only_opening_a_client_needs_the_extra() -> None:
    program = """
import asyncio, sys
sys.modules["aiobotocore"] = sys.modules["botocore"] = None
import headrace.kinesis.reading.prefetch, headrace.kinesis.reading.fan_out, headrace.kinesis.reading.registering
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsSettings
async def main():
    async with open_client(AwsSettings(region="eu-central-1"), "kinesis"): pass
try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        done.stdout
        == "ConfigError Kinesis and DynamoDB need aiobotocore: pip install 'headrace[kinesis]'\n"
    )


def test_a_stream_is_named_by_name_or_arn() -> None:
    assert (stream_name("orders"), stream_arguments("orders")) == (
        "orders",
        {"StreamName": "orders"},
    )
    assert (stream_name(ARN), stream_arguments(ARN)) == ("orders", {"StreamARN": ARN})
    for wrong in (
        "arn:aws:s3:::bucket",
        f"{ARN}/consumer/x:1",
        "arn:aws:kinesis:eu-central-1:1:stream/",
    ):
        with pytest.raises(ConfigError, match="is not the ARN of a stream"):
            stream_name(wrong)
