"""The class behind `format("headrace-kinesis")`. It imports little, because Spark loads it at every look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from headrace.errors import ConfigError
from headrace.spark.errors import short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


@short_tracebacks
class KinesisDataSource(DataSource):
    """Amazon Kinesis streams as a PySpark source and sink; see `docs/guides/spark-kinesis.md`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headrace-kinesis"

    def schema(self) -> str:
        """Return the columns. Spark calls this before it plans a read, so wrong options are errors here."""
        from headrace.spark.kinesis.columns import spark_schema
        from headrace.spark.kinesis.options import read_options

        return spark_schema(read_options(dict(self.options), streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of a batch query."""
        from headrace.spark.kinesis.batch import KinesisBatchReader
        from headrace.spark.kinesis.columns import check_schema
        from headrace.spark.kinesis.options import read_options

        options = read_options(dict(self.options), streaming=False)
        check_schema(schema, options)
        return KinesisBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader of a streaming query."""
        from headrace.spark.kinesis.columns import check_schema
        from headrace.spark.kinesis.options import read_options
        from headrace.spark.kinesis.stream import KinesisStreamReader

        try:
            options = read_options(dict(self.options), streaming=True)
            check_schema(schema, options)
        except ConfigError as error:
            return KinesisStreamReader(error)
        return KinesisStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of a batch query."""
        from headrace.spark.kinesis.sink import KinesisWriter

        if overwrite:
            raise ConfigError('streams cannot be overwritten: use .mode("append")')
        return KinesisWriter(dict(self.options), schema)

    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """Create the writer of a streaming query."""
        from headrace.spark.kinesis.sink import KinesisStreamWriter

        return KinesisStreamWriter(dict(self.options), schema)
