"""`format("headrace-kinesis")`: where Spark enters. Imports little, for Spark loads it at every look-up."""

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
    """Streams of Amazon Kinesis as a PySpark source and sink; see `docs/spark-kinesis.md`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headrace-kinesis"

    def schema(self) -> str:
        """Return the columns; called once before a read is planned, so wrong options end here."""
        from headrace.spark.kinesis.columns import spark_schema  # noqa: PLC0415 - see the module's docstring
        from headrace.spark.kinesis.options import read_options  # noqa: PLC0415 - as above

        return spark_schema(read_options(dict(self.options), streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        from headrace.spark.kinesis.batch import KinesisBatchReader  # noqa: PLC0415 - see the module's docstring
        from headrace.spark.kinesis.columns import check_schema  # noqa: PLC0415 - as above
        from headrace.spark.kinesis.options import read_options  # noqa: PLC0415 - as above

        options = read_options(dict(self.options), streaming=False)
        check_schema(schema, options)
        return KinesisBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the streaming reader."""
        from headrace.spark.kinesis.columns import check_schema  # noqa: PLC0415 - see the module's docstring
        from headrace.spark.kinesis.options import read_options  # noqa: PLC0415 - as above
        from headrace.spark.kinesis.stream import KinesisStreamReader  # noqa: PLC0415 - as above

        try:
            options = read_options(dict(self.options), streaming=True)
            check_schema(schema, options)
        except ConfigError as error:
            return KinesisStreamReader(error)
        return KinesisStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the batch writer."""
        from headrace.spark.kinesis.sink import KinesisWriter  # noqa: PLC0415 - see the module's docstring

        if overwrite:
            raise ConfigError('streams cannot be overwritten: use .mode("append")')
        return KinesisWriter(dict(self.options), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001 - Spark's; true is output mode complete, which appends, too
    ) -> DataSourceStreamWriter:
        """Return the streaming writer."""
        from headrace.spark.kinesis.sink import KinesisStreamWriter  # noqa: PLC0415 - see the module's docstring

        return KinesisStreamWriter(dict(self.options), schema)
