"""The class behind `format("headrace")`. The module imports little, because Spark loads it at every look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from headrace.errors import ConfigError
from headrace.spark.errors import short_tracebacks
from headrace.spark.worker import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from headrace.spark.options.source import SourceOptions

NAME = "headrace"


@short_tracebacks
class HeadraceDataSource(DataSource):
    """Topics of Headrace, or of any cluster that speaks the Kafka protocol, as a PySpark source and sink.

    Options and schema are those of Spark's own Kafka connector; see `docs/guides/spark.md`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name. Spark reserves the name `kafka` for its own connector."""
        return NAME

    def schema(self) -> str:
        """Return the columns. Spark calls this before it plans a read, so wrong options are errors here."""
        from headrace.spark.source.schema import spark_schema

        freeze_imports()
        return spark_schema(self._source_options(None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of a batch query."""
        from headrace.spark.readers.batch import HeadraceBatchReader

        freeze_imports()
        options = self._source_options(streaming=False)
        _check_schema(schema, options)
        return HeadraceBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader of a streaming query."""
        from headrace.spark.readers.stream import HeadraceStreamReader

        freeze_imports()
        try:
            options = self._source_options(streaming=True)
            _check_schema(schema, options)
        except ConfigError as error:
            return HeadraceStreamReader(error)
        return HeadraceStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of a batch query."""
        from headrace.spark.options.sink import sink_options
        from headrace.spark.sink.batch import HeadraceWriter

        return HeadraceWriter(
            sink_options(dict(self.options), streaming=False), schema, overwrite=overwrite
        )

    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """Create the writer of a streaming query."""
        from headrace.spark.options.sink import sink_options
        from headrace.spark.sink.stream import HeadraceStreamWriter

        return HeadraceStreamWriter(sink_options(dict(self.options), streaming=True), schema)

    def _source_options(self, streaming: bool | None) -> SourceOptions:
        from headrace.spark.client.settings import consumer_config
        from headrace.spark.options.source import source_options

        options = source_options(dict(self.options), streaming=streaming)
        consumer_config(options.client)  # for its checks
        return options


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    from headrace.spark.source.schema import columns

    given = tuple((column.name, column.dataType.simpleString()) for column in schema)
    if given != columns(options):
        raise ConfigError(
            'the columns of format("headrace") are fixed: leave .schema(...) out, name those wanted in the '
            "option columns and cast afterwards"
        )
