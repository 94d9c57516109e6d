"""The schemas of tables as Spark types."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from spark_jobs.arrow_types import ARROW_TYPES
from spark_jobs.schemas import Table


def table_schema(table: Table) -> StructType:
    """Return the schema of ``table``; the metadata of each column has its comment, unit and source."""
    return StructType(
        [
            StructField(
                column.name,
                from_arrow_type(ARROW_TYPES[column.type]),
                True,
                {"comment": column.meaning, "unit": column.unit, "source": column.source},
            )
            for column in table.columns
        ]
    )
