"""Calls to DynamoDB: each attempt has a time, is repeated where that can help, and ends in an answer or an error."""

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
    """The condition of a write does not hold, or did not for its last attempt: an earlier one may have been written."""


class DynamoCalls:
    """The client, and how patient it is.

    Args:
        client: Of aiobotocore, which repeats nothing itself.
        table: Whose operations these are.
        timeout_ms: All attempts of a call and the pauses between them. Renewals of leases wait for it, so it is far
            less than a lease lasts.
        pause: Draws a number from 0 to 1: how much of a pause is made.
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
        """Call an operation on the table, again where it was throttled or had no answer.

        Raises:
            ConditionRefusedError: The condition of a write was refused.
            LeaseStoreError: No answer in time, or one that repeating does not change; the cause is what AWS said.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        attempt, told = 0, None
        while True:
            try:
                # A lost answer must not take the time of all attempts.
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
                if told is None or not isinstance(error, TimeoutError):
                    told = error  # the last one may have had hardly any time: what was wrong before says more
                pause_s = self._pause() * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
                hopeless = loop.time() + pause_s >= deadline_s
                if failure_kind(error) not in _REPEATED or hopeless:
                    raise LeaseStoreError(str(self._explained(operation, told))) from told
            attempt += 1
            await asyncio.sleep(pause_s)

    async def pages(self, operation: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield every item of a Query or Scan, page by page.

        Raises:
            LeaseStoreError: A page could not be had.
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
        doing = f"{operation} on the table {self.table} of leases"
        region, endpoint = region_of(self._client), endpoint_of(self._client)
        if isinstance(error, TimeoutError):
            asked = f" from {endpoint}" if endpoint else ""
            where = f" in region {region}" if region else ""
            return LeaseStoreError(
                f"{doing}: no answer within {self._timeout_s:g} s{asked}{where}: check region, endpoint_url and the "
                "network"
            )
        return explained(error, doing, region=region, endpoint=endpoint)


def as_configuration(error: LeaseStoreError) -> HeadraceError:
    """Return an error of opening: what no repetition would change is a matter of configuration."""
    cause = error.__cause__
    if cause is None or failure_kind(cause) in _REPEATED:
        return error
    return ConfigError(str(error))
