"""Calls to DynamoDB: each attempt has a time limit, and is repeated if a retry can help."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from headrace.errors import ConfigError, HeadraceError, LeaseStoreError
from headrace.kinesis.client.backoff import endpoint_of, region_of
from headrace.kinesis.client.errors import FailureKind, error_code, explained, failure_kind, of_aws
from headrace.kinesis.client.settings import AwsClient

_REPEATED: Final = frozenset({FailureKind.THROTTLED, FailureKind.REPEAT})
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class ConditionRefusedError(Exception):
    """The condition of a write does not hold. An earlier attempt of the call may have been executed."""


class DynamoCalls:
    """A client of DynamoDB with the time limit and the retries of calls.

    Args:
        client: A client of aiobotocore, without retries of its own.
        table: The table of all calls.
        timeout_ms: The time limit of all attempts of a call with their pauses, in milliseconds. Renewals of leases wait
            for it, so it must be far shorter than a lease.
        pause: A function that returns a random number from 0 to 1, the part of a pause that is used.
    """

    def __init__(
        self,
        client: AwsClient,
        table: str,
        *,
        timeout_ms: int,
        pause: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self.table = table
        self._timeout_s = timeout_ms / 1000
        self._pause = pause

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation on the table; retry if it was throttled or not answered.

        Raises:
            ConditionRefusedError: The condition of a write does not hold.
            LeaseStoreError: No response came in time, or a retry cannot change it. The cause is the error of AWS.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        attempt, reported = 0, None
        while True:
            try:
                # One lost response must not use up the time of all attempts.
                async with asyncio.timeout_at(min(deadline_s, loop.time() + self._timeout_s / 3)):
                    answer: dict[str, Any] = await getattr(self._client, operation)(
                        TableName=self.table, **parameters
                    )
                    return answer
            except Exception as error:
                if error_code(error) == "ConditionalCheckFailedException":
                    raise ConditionRefusedError from error
                if not of_aws(error):
                    raise
                if reported is None or not isinstance(error, TimeoutError):
                    reported = error  # the last attempt may have timed out for lack of time only
                pause_s = self._pause() * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
                hopeless = loop.time() + pause_s >= deadline_s
                if failure_kind(error) not in _REPEATED or hopeless:
                    raise LeaseStoreError(str(self._explained(operation, reported))) from reported
            attempt += 1
            await asyncio.sleep(pause_s)

    async def pages(self, operation: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield every item of a Query or Scan, page by page.

        Raises:
            LeaseStoreError: A page could not be read.
        """
        while True:
            answer = await self.call(operation, **parameters)
            for item in answer.get("Items", ()):
                yield item
            last = answer.get("LastEvaluatedKey")
            if not last:
                return
            parameters["ExclusiveStartKey"] = last

    def _explained(self, operation: str, error: Exception) -> HeadraceError:
        doing = f"{operation} on the lease table {self.table}"
        region, endpoint = region_of(self._client), endpoint_of(self._client)
        if isinstance(error, TimeoutError):
            source = f" from {endpoint}" if endpoint else ""
            where = f" in region {region}" if region else ""
            return LeaseStoreError(
                f"{doing}: no answer within {self._timeout_s:g} s{source}{where}. Check region, endpoint_url and the "
                "network"
            )
        return explained(error, doing, region=region, endpoint=endpoint)


def as_configuration(error: LeaseStoreError) -> HeadraceError:
    """Return an error of opening as a `ConfigError` if no retry can help."""
    cause = error.__cause__
    if cause is None or failure_kind(cause) in _REPEATED:
        return error
    return ConfigError(str(error))
