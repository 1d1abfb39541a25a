"""Plans: pipelines with everything that a run adds to their declarations."""

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
    """A reason why a pipeline cannot run."""

    pipeline: Pipeline | None
    """The pipeline with the problem; None if the problem is not of a single pipeline."""
    message: str

    def __str__(self) -> str:
        if self.pipeline is None:
            return self.message
        return f"{self.pipeline.where}: {self.pipeline.name}: {self.message}"


class PlanError(ConfigError):
    """Pipelines cannot run as they are declared. The error lists all problems."""

    def __init__(self, problems: list[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([count, *map(str, problems)]))
        self.problems = tuple(problems)
        self._lines = (count, *map(str, problems))

    @property
    def lines(self) -> Sequence[str]:
        """The number of problems, then each problem on a line."""
        return self._lines


@dataclass(frozen=True)
class Trigger:
    """The trigger of a pipeline: when batches begin."""

    every: str | None
    """The interval in Spark's form; None processes the available records once."""

    def __str__(self) -> str:
        return "available now, then it ends" if self.every is None else f"every {self.every}"


@dataclass(frozen=True)
class DefaultCluster:
    """The cluster of all topics that do not name another cluster."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the cluster, overridden by the given options of a topic."""
        properties = {
            f"kafka.{name.replace('_', '.')}": value for name, value in self.properties.items()
        }
        return {BOOTSTRAP: self.bootstrap, **properties, **given}


@dataclass(frozen=True)
class Plan:
    """A checked pipeline.

    Attributes:
        sources: The sources by the names of the function's parameters.
        columns: Names and types of the result; None if Spark has not analysed the frame.
        creates: Missing topics that are created before the pipeline runs.
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
        return self.pipeline.name

    @property
    def sink(self) -> Sink:
        """The target of the pipeline's result."""
        return self.pipeline.sink

    @property
    def sink_topic(self) -> Topic | None:
        """The topic that the pipeline writes; None if it writes none."""
        end = self.sink.to if isinstance(self.sink, ForEachBatch) else self.sink
        return end if isinstance(end, Topic) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON output. Options are left out, because they may contain secrets."""
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
    """Return the checkpoint directory of a pipeline, by default beside the file that declares it."""
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
