"""Parses Kafka records into audit envelopes and dead letters. Pure: a stream and a backfill use the same functions.

One bad event makes its whole envelope a dead letter, so that no envelope is counted in part. An event of an unknown
kind is not bad; it is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType
from pyspark.sql.window import WindowSpec

from spark_jobs import spark_types
from spark_jobs.authentication import REFUSED_COLUMN
from spark_jobs.dedup_ranges import AuditRecord, DedupDecision, DedupRanges, SidecarBoot
from spark_jobs.events import ENVELOPE, SCHEMA_LEVEL, EventField
from spark_jobs.schemas import DEAD_LETTERS

DEAD_LETTER_SAMPLE_BYTES = 1024
"""Bytes of the value of a dead letter that are stored."""

RECORD_ID = ("cluster_id", "broker_id", "boot_id", "first_seq")
"""Columns that identify an envelope: the boot of a sidecar process, and the number of the first event."""

NEW_RANGES_SCHEMA = "partition int, offset bigint, new_first bigint, new_last bigint"
CONFLICTS_SCHEMA = "partition int, offset bigint, conflict string"

CONFLICT_REASON = "conflict"
"""Reason of a dead letter with event numbers for which another record has other events."""

RECORD_POSITION = ("topic", "partition", "offset", "timestamp")
"""Columns of a record's position in Kafka."""


def parse_records(records: DataFrame) -> DataFrame:
    """Return one row for each Kafka record, with the fields of its envelope or the reason why it is a dead letter.

    ``records``: value (binary), topic, partition, offset, timestamp, as Spark's Kafka source gives them, and
    ``authentication.REFUSED_COLUMN`` if signatures are checked. Columns of the result: the position; ``reason`` and
    ``detail`` (only of dead letters); ``value_bytes`` and ``value_sample``; the fields of the envelope and ``digests``
    of all its events, of their first half, and of the rest (NULL for dead letters).
    """
    refused = F.col(REFUSED_COLUMN) if REFUSED_COLUMN in records.columns else F.lit(None)
    value = F.col("value")
    text = value.cast("string")
    # Spark's JSON reader ignores what follows the first value, and reads an array of envelopes as its first element.
    # With this wrapper `whole` is NULL for a record that is not exactly one value.
    wrapped = F.concat(F.lit('{"envelope":'), text, F.lit(',"whole":true}'))
    read = F.from_json(
        wrapped, _wrapped_envelope_type(), {"columnNameOfCorruptRecord": "wrong_type", "allowSingleQuotes": "false"}
    )
    in_a_field = F.expr(_field_fault("read.envelope", ENVELOPE)).alias("in_a_field")
    checked = records.select(*RECORD_POSITION, "value", refused.alias(REFUSED_COLUMN), read.alias("read"))
    checked = checked.select("*", in_a_field).select(
        *RECORD_POSITION, "value", _fault_column().alias("fault"), F.col("read.envelope").alias("envelope")
    )
    dead = F.col("fault").isNotNull()
    sample = F.translate(F.base64(F.substring(value, 1, DEAD_LETTER_SAMPLE_BYTES)), "\r\n", "")
    return checked.select(
        *RECORD_POSITION,
        F.col("fault.reason").alias("reason"),
        F.col("fault.detail").alias("detail"),
        F.coalesce(F.octet_length(value), F.lit(0)).cast("bigint").alias("value_bytes"),
        sample.alias("value_sample"),
        *[F.when(~dead, F.col("envelope")[field.name]).alias(field.name) for field in ENVELOPE],
        F.when(~dead, F.expr(_digests_sql("envelope.events"))).alias("digests"),
    )


def deduplicate(parsed: DataFrame) -> DataFrame:
    """Return ``parsed`` without duplicate events, for a whole topic instead of a stream. Dead letters are all kept.

    Of records that share event numbers the one with the earliest timestamp is kept. See ``apply_decision``.
    """
    group = F.sum(F.expr("int(coalesce(first_seq > reached, true))")).over(_window_by_boot())
    grouped = _with_highest_before(parsed).withColumn("group", group)
    shared = grouped.withColumn("records", F.count("*").over(Window.partitionBy(*RECORD_ID[:3], "group")))
    return apply_decision(parsed, DedupRanges().add_records(collect_valid_records(shared.where("records > 1"))))


def apply_decision(parsed: DataFrame, decision: DedupDecision) -> DataFrame:
    """Return ``parsed`` without the events that were written before, and with a dead letter for each conflict.

    Events of a record in conflict that are new are kept. The dead letter has the fields of the envelope without events.
    """
    if not decision.new_ranges:
        return parsed
    make = parsed.sparkSession.createDataFrame
    new = _cut_to_new_ranges(parsed, make(decision.new_ranges, NEW_RANGES_SCHEMA))
    if not decision.conflicts:
        return new
    changed = {"reason": f"'{CONFLICT_REASON}'", "detail": "conflict", "events": "NULL", "digests": "NULL"}
    there = parsed.join(F.broadcast(make(decision.conflicts, CONFLICTS_SCHEMA)), ["partition", "offset"])
    return new.unionByName(there.selectExpr(*[f"{changed.get(name, name)} AS {name}" for name in parsed.columns]))


def _cut_to_new_ranges(parsed: DataFrame, pieces: DataFrame) -> DataFrame:
    there = parsed.join(F.broadcast(pieces), ["partition", "offset"], "left")
    changed = {
        "first_seq": "coalesce(new_first, first_seq)",
        "last_seq": "coalesce(new_last, last_seq)",
        "events": "CASE WHEN new_first <= new_last"  # Spark may evaluate this before it filters out empty ranges
        " THEN slice(events, int(new_first - first_seq + 1), int(new_last - new_first + 1)) ELSE events END",
    }
    return there.where("new_first IS NULL OR new_first <= new_last").selectExpr(
        *[f"{changed.get(name, name)} AS {name}" for name in parsed.columns]
    )


def collect_valid_records(parsed: DataFrame) -> list[AuditRecord]:
    """Collect the valid records of a batch, in the order of their timestamps."""
    columns = ["timestamp", "partition", "offset", *RECORD_ID, "last_seq", "digests"]
    rows = sorted(parsed.where("reason IS NULL").select(*columns).collect(), key=lambda row: row[:3])
    return [AuditRecord(row[1], row[2], SidecarBoot(*row[3:6]), row[6], row[7], tuple(row[8])) for row in rows]


def _with_highest_before(parsed: DataFrame) -> DataFrame:
    """Return the valid records without events, with ``reached``: the highest event number of records before them."""
    so_far = _window_by_boot().rowsBetween(Window.unboundedPreceding, -1)
    records = parsed.where("reason IS NULL").select("reason", *RECORD_POSITION[1:], *RECORD_ID, "last_seq", "digests")
    return records.withColumn("reached", F.max("last_seq").over(so_far))


def _window_by_boot() -> WindowSpec:
    """Return the window of a boot by event number.

    Of two records with the same first number the longer one is first.
    """
    ordered = ("first_seq", F.desc("last_seq"), "timestamp", "partition", "offset")
    return Window.partitionBy(*RECORD_ID[:3]).orderBy(*ordered)


def dead_letter_rows(parsed: DataFrame) -> DataFrame:
    """Return the rows of the table ``dead_letter_rows``."""
    dead = parsed.where(F.col("reason").isNotNull()).withColumn("day", F.to_date("timestamp"))
    return dead.select(*[F.col(column.name).cast(column.type) for column in DEAD_LETTERS.columns])


def explode_events(parsed: DataFrame, *kinds: str) -> DataFrame:
    """Return one row for each event of ``kinds`` in valid envelopes: cluster_id, broker_id, boot_id, and ``event``.

    Fields of ``event`` that were left out (see ``fields_with_defaults``), or that its kind does not have, are NULL.
    """
    single = parsed.where(F.col("reason").isNull()).select(*RECORD_ID[:3], F.explode("events").alias("event"))
    return single.where(F.col("event.kind").isin(*kinds))


def fields_with_defaults(struct: str, fields: Sequence[EventField]) -> list[str]:
    """Return SQL of the fields of the column ``struct``, with the default value for each field that was left out."""
    return [f"{_value_or_default(f'{struct}.{field.name}', field)} AS {field.name}" for field in fields]


def _value_or_default(value: str, field: EventField) -> str:
    if field.type.startswith(("array", "map")):
        return f"coalesce({value}, {field.type.split('<')[0]}())"
    return value if field.required or field.default is None else f"coalesce({value}, {field.default!r})"


def _digests_sql(events: str) -> str:
    """Return SQL of the three digests of ``events``; see ``dedup_ranges.AuditRecord``.

    The hash is not cryptographic: it does not protect against someone who knows the events before they are sent. The
    envelope fields ``dropped`` and ``sent_at`` are not included: they differ when the same events are sent again.
    """
    half = f"size({events}) div 2"
    parts = [events, f"slice({events}, 1, {half})", f"slice({events}, {half} + 1, size({events}))"]
    return f"array({', '.join(f'xxhash64({part})' for part in parts)})"


def _wrapped_envelope_type() -> StructType:
    return StructType(
        [
            StructField("envelope", spark_types.envelope_type()),
            StructField("whole", BooleanType()),
            StructField("wrong_type", StringType()),
        ]
    )


def _fault_column() -> Column:
    """Return struct<reason, detail> of the first fault of the record in ``value`` and ``read``, NULL if it has none.

    It is built as SQL text, because building so many conditions as columns in Python takes seconds for each query.
    """
    envelope, events, first, last = (
        "read.envelope",
        "read.envelope.events",
        *(f"read.envelope.{n}_seq" for n in ("first", "last")),
    )
    size = f"size({events})"
    numbered = f"{last} - {first} + 1 = {size} AND get({events}, 0).seq = {first}"
    in_a_field = "split(in_a_field, ' ')"
    cases = {
        f"{REFUSED_COLUMN} IS NOT NULL": _reason_struct(REFUSED_COLUMN),
        "value IS NULL": _reason_struct("'empty'"),
        "NOT is_valid_utf8(CAST(value AS STRING))": _reason_struct("'not_utf8'"),
        "read.whole IS NULL": _reason_struct("'not_json'"),
        f"{envelope}.schema_level > {SCHEMA_LEVEL}": _reason_struct(
            "'schema_level_too_high'", f"CAST({envelope}.schema_level AS STRING)"
        ),
        f"{envelope} IS NULL": _reason_struct("'bad_value'", "'the record is not a JSON object'"),
        "read.wrong_type IS NOT NULL": _reason_struct("'bad_value'", "'a value has the wrong type'"),
        "in_a_field IS NOT NULL": _reason_struct(f"{in_a_field}[0]", f"{in_a_field}[1]"),
        f"{size} = 0": _reason_struct("'bad_value'", "'events'"),
        f"NOT ({numbered})": _reason_struct(
            "'sequence_mismatch'", f"format_string('%d to %d, %d events', {first}, {last}, {size})"
        ),
    }
    return F.expr("CASE " + " ".join(f"WHEN {case} THEN {fault}" for case, fault in cases.items()) + " END")


def _reason_struct(reason: str, detail: str = "CAST(NULL AS STRING)") -> str:
    return f"struct({reason} AS reason, {detail} AS detail)"


def _field_fault(parent: str, fields: Sequence[EventField], path: str = "") -> str:
    """Return SQL of the first fault in a field of the object ``parent``: ``<reason> <path>``, NULL if there is none.

    NULL is a fault only in a required field; other fields have a default.
    """
    faults = [
        f"WHEN {fails} THEN '{reason} {path}{field.name}'"
        for field in fields
        for reason, fails in _field_checks(parent, field)
    ]
    parts = [f"CASE {' '.join(faults)} END"] if faults else []
    for field in fields:
        if field.fields:
            item, inside = f"one_of_{field.name}", f"{path}{field.name}[]."
            first = _field_fault(item, field.fields, inside)
            if field.fields_by_kind:
                of_kind = [
                    f"WHEN '{kind}' THEN {_field_fault(item, more, inside)}"
                    for kind, more in field.fields_by_kind.items()
                ]
                first = f"coalesce({first}, CASE {item}.kind {' '.join(of_kind)} END)"
            parts.append(f"get(array_compact(transform({parent}.{field.name}, {item} -> {first})), 0)")
    return f"coalesce({', '.join(parts)})"


def _field_checks(parent: str, field: EventField) -> Iterator[tuple[str, str]]:
    """Yield reason and SQL condition of each fault that one field of ``parent`` can have, without array elements."""
    value = f"{parent}.{field.name}"
    if field.required:
        yield "missing_field", f"{value} IS NULL"
    ends = [f"{value} < {field.minimum}"] if field.minimum is not None else []
    ends += [f"{value} > {field.maximum}"] if field.maximum is not None else []
    if ends:
        yield "bad_value", " OR ".join(ends)
    if field.allowed:
        yield "bad_value", f"{value} NOT IN ({', '.join(map(repr, field.allowed))})"
