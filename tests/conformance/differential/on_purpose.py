"""Where Headrace answers differently from Apache Kafka on purpose. docs/differences-from-kafka.md is made from it.

`python -m tests.conformance.differential.on_purpose` writes the document's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Difference:
    """One difference that is meant.

    Attributes:
        scenario: The scenario that shows it.
        step: A pattern of the labels of its steps.
        paths: Patterns of the paths in the answer.
        reason: Why.
        kafka: What Kafka answers; None for anything.
        headrace: What Headrace answers; None for anything.
    """

    scenario: str
    step: str
    paths: tuple[str, ...]
    reason: str
    kafka: str | None = None
    headrace: str | None = None


DIFFERENCES: Final[tuple[Difference, ...]] = ()
