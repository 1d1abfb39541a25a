"""What would run: a pipeline with everything that a run adds to its declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.pipelines.declaration import ForEachBatch, Pipeline, Sink, Source, Table, Topic
from headrace.spark.options.reader import BOOTSTRAP


@dataclass(frozen=True)
class Problem:
    """Something that keeps a pipeline from running."""

    pipeline: Pipeline | None
    """None where it is not one pipeline's."""
    message: str

    def __str__(self) -> str:
        if self.pipeline is None:
            return self.message
        return f"{self.pipeline.where}: {self.pipeline.name}: {self.message}"


class PlanError(ConfigError):
    """Pipelines cannot run as they are declared; it lists all reasons that were found."""

    def __init__(self, problems: list[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([count, *map(str, problems)]))
        self.problems = tuple(problems)
        self._lines = (count, *map(str, problems))

    @property
    def lines(self) -> Sequence[str]:
        """The number of problems, and each in a line."""
        return self._lines


@dataclass(frozen=True)
class Trigger:
    """When batches begin."""

    every: str | None
    """As Spark writes it; None is once, over what there is."""

    def __str__(self) -> str:
        return "available now, then it ends" if self.every is None else f"every {self.every}"


@dataclass(frozen=True)
class DefaultCluster:
    """The cluster of all topics that name no other."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of a topic with those of the cluster before them."""
        properties = {
            f"kafka.{name.replace('_', '.')}": value for name, value in self.properties.items()
        }
        return {BOOTSTRAP: self.bootstrap, **properties, **given}


@dataclass(frozen=True)
class Plan:
    """A pipeline that was found to be in order.

    Attributes:
        sources: By the parameter that gets the frame.
        columns: Names and types of the result, where Spark was asked.
        creates: Topics that are missing and are created before it runs.
    """

    pipeline: Pipeline
    connection: DefaultCluster
    sources: Mapping[str, Source]
    trigger: Trigger
    checkpoint: str
    columns: Mapping[str, str] | None = None
    creates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline.name

    @property
    def sink(self) -> Sink:
        """Where the result goes."""
        return self.pipeline.sink

    @property
    def sink_topic(self) -> Topic | None:
        """The topic that is written to, if one is."""
        end = self.sink.to if isinstance(self.sink, ForEachBatch) else self.sink
        return end if isinstance(end, Topic) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for programs; options are left out, for they may hold secrets."""
        return {
            "name": self.name,
            "file": self.pipeline.file,
            "line": self.pipeline.line,
            "bootstrap": self.connection.bootstrap,
            "sources": {name: _end(source) for name, source in self.sources.items()},
            "sink": _end(self.sink),
            "trigger": self.trigger.every or "available_now",
            "output_mode": self.pipeline.output_mode,
            "checkpoint": self.checkpoint,
            "columns": None if self.columns is None else dict(self.columns),
            "creates": list(self.creates),
        }


def checkpoint_path(pipeline: Pipeline, root: str | None) -> str:
    """Return where a pipeline keeps progress and state: beside its file unless something else is said."""
    if pipeline.checkpoint is not None:
        return pipeline.checkpoint
    base = root or str(Path(pipeline.file).absolute().parent / "checkpoints")
    return f"{base.rstrip('/')}/{pipeline.name}"


def _end(end: Source | Sink) -> dict[str, Any]:
    match end:
        case Topic():
            return {"topic": end.name, "format": end.format, "schema": end.schema}
        case Table():
            return {"table": end.path, "format": end.format, "stream": end.stream}
        case ForEachBatch():
            to = {} if end.to is None else _end(end.to)
            return {"function": getattr(end.function, "__name__", str(end.function)), **to}
