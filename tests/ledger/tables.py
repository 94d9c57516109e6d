"""Tables made by the jobs' functions without Spark or Kafka, those of the scripted load among them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow
from deltalake import write_deltalake

from spark_jobs.dedup_ranges import DedupRanges
from spark_jobs.definitions import Definitions, load
from spark_jobs.schemas import DERIVED, STREAMED, TABLES
from spark_jobs.tables.produced import mirror_sides
from spark_jobs.tables.registry import tables_without_definitions
from tests.ledger.script import happened
from tests.ledger.wire import emit
from tests.spark import derived
from tests.spark.decoded import kafka_records, partial_rows, rows_of, summaries
from tests.spark.stored import merged, schema

DEFINITIONS = Path(__file__).parent / "definitions"


def tables_of(values: Sequence[bytes | None], definitions: Definitions) -> dict[str, pyarrow.Table]:
    """What records with these values come to, all at once."""
    records = kafka_records(values)
    sent = [one.audit_record() for one in summaries(partial_rows(records)) if not one.dead]
    options = {"decision": DedupRanges().add_records(sent), "mirrors": mirror_sides(definitions.mirrors)}
    partial = partial_rows(records, **options)
    made: dict[str, pyarrow.Table] = {}
    for name, table in STREAMED.items():  # a connection over midnight has a row of each day, until they are merged
        made[name] = pyarrow.Table.from_pylist(merged(table, rows_of(name, partial).to_pylist()), schema(table))
    for name in DERIVED.keys() - tables_without_definitions(DERIVED, definitions):
        inputs = {each: made[each] for each in TABLES[name].derived_from}
        made[name] = derived.computed(name, inputs, definitions)
    return made


def write_tables(root: Path) -> None:
    values = [one.value for topic in emit(happened()).topics.values() for one in topic]
    for name, rows in tables_of(values, load([DEFINITIONS])).items():
        write_deltalake(root / name, rows, partition_by=["day"], description=TABLES[name].meaning)
