"""The fixtures that start servers for these tests."""

from __future__ import annotations

from tests.integration.kinesis.servers import dynamodb_url, kinesis_url

__all__ = ["dynamodb_url", "kinesis_url"]
