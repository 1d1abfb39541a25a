"""Run the fakes of Kinesis and DynamoDB in a process; its first line is the address, then it answers requests.

python kinesis_server.py limits|none

A request is a line of JSON: {"do": "calls"}, or {"do": "fail", "operation": "dynamodb.UpdateItem", "times": 3}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from headrace.testing.kinesis import FakeAws, Limits, error

THROTTLED = {
    "kinesis": "ProvisionedThroughputExceededException",
    "dynamodb": "ProvisionedThroughputExceededException",
}


def answer(aws: FakeAws, question: dict[str, Any]) -> Any:
    """Perform a request, and return its result."""
    services = {"kinesis": aws.kinesis, "dynamodb": aws.dynamodb}
    if question["do"] == "calls":
        return {
            f"{name}.{operation}": times
            for name, service in services.items()
            for operation, times in service.calls.counts().items()
        }
    name, operation = question["operation"].split(".")
    services[name].faults.on(operation, error(THROTTLED[name]), times=question["times"])
    return None


def main() -> int:
    """Serve until the standard input ends."""
    limits = Limits() if sys.argv[1] == "limits" else Limits().unthrottled()
    with FakeAws(limits=limits) as aws:
        print(aws.endpoint_url, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(aws, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
