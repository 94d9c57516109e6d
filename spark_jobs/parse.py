"""Kafka records in, audit envelopes and dead letters out. Pure: the same for a stream and for a backfill.

An envelope is taken whole or not at all: one bad event makes all of it a dead letter, so that nothing is half counted.
An event of a kind that is not known here is no bad one; it is passed over.
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
"""Bytes of a dead letter's value that are kept."""

RECORD_ID = ("cluster_id", "broker_id", "boot_id", "first_seq")
"""What identifies an envelope: the run of a process, and the number of its first event."""

NEW_RANGES_SCHEMA = "partition int, offset bigint, new_first bigint, new_last bigint"
CONFLICTS_SCHEMA = "partition int, offset bigint, conflict string"

CONFLICT_REASON = "conflict"
"""Reason of a dead letter that claims numbers of another record, with other events."""

RECORD_POSITION = ("topic", "partition", "offset", "timestamp")
"""What Kafka says of a record."""


def parse_records(records: DataFrame) -> DataFrame:
    """Return one row for each Kafka record: its position, and the envelope's fields or the reason why there are none.

    ``records``: value (binary), topic, partition, offset, timestamp, as Kafka's source gives them, and
    ``authentication.REFUSED_COLUMN`` where signatures are checked. Result: the position; ``reason`` and ``detail`` (NULL but
    for dead letters); ``value_bytes`` and ``value_sample``; the fields of the envelope, and ``digests`` of its events:
    of all, the first half, and the rest (NULL for dead letters).
    """
    refused = F.col(REFUSED_COLUMN) if REFUSED_COLUMN in records.columns else F.lit(None)
    value = F.col("value")
    text = value.cast("string")
    # Spark's reader stops after the first JSON value and forgets what follows it, and it reads an array of envelopes
    # as its first one. Wrapped like this, a record that is not exactly one value loses `whole`.
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
    """Return ``parsed`` with each event once; dead letters stay as many as they are. For a whole topic, not a stream.

    The same as batch by batch: of records that share numbers that stays which Kafka took first. See ``apply_decision``.
    """
    group = F.sum(F.expr("int(coalesce(first_seq > reached, true))")).over(_window_by_boot())
    grouped = _with_highest_before(parsed).withColumn("group", group)
    shared = grouped.withColumn("records", F.count("*").over(Window.partitionBy(*RECORD_ID[:3], "group")))
    return apply_decision(parsed, DedupRanges().take(collect_valid_records(shared.where("records > 1"))))


def apply_decision(parsed: DataFrame, decision: DedupDecision) -> DataFrame:
    """Return ``parsed`` without what was there before, and with a dead letter for each conflict.

    Of a record in conflict that stays which is new, as of any other. Its dead letter has the fields of its envelope,
    but not the events.
    """
    if not decision.pieces:
        return parsed
    make = parsed.sparkSession.createDataFrame
    new = _cut_to_new_ranges(parsed, make(decision.pieces, NEW_RANGES_SCHEMA))
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
        "events": "CASE WHEN new_first <= new_last"  # Spark may come to this before it leaves out what is empty
        " THEN slice(events, int(new_first - first_seq + 1), int(new_last - new_first + 1)) ELSE events END",
    }
    return there.where("new_first IS NULL OR new_first <= new_last").selectExpr(
        *[f"{changed.get(name, name)} AS {name}" for name in parsed.columns]
    )


def collect_valid_records(parsed: DataFrame) -> list[AuditRecord]:
    """Return the good records of a batch, as Kafka took them."""
    columns = ["timestamp", "partition", "offset", *RECORD_ID, "last_seq", "digests"]
    rows = sorted(parsed.where("reason IS NULL").select(*columns).collect(), key=lambda row: row[:3])
    return [AuditRecord(row[1], row[2], SidecarBoot(*row[3:6]), row[6], row[7], tuple(row[8])) for row in rows]


def _with_highest_before(parsed: DataFrame) -> DataFrame:
    """Return the good records without their events, and the highest number of those before them: ``reached``."""
    so_far = _window_by_boot().rowsBetween(Window.unboundedPreceding, -1)
    records = parsed.where("reason IS NULL").select("reason", *RECORD_POSITION[1:], *RECORD_ID, "last_seq", "digests")
    return records.withColumn("reached", F.max("last_seq").over(so_far))


def _window_by_boot() -> WindowSpec:
    """By number: of two that begin alike the longer one, of two equal ones that which Kafka took first."""
    ordered = ("first_seq", F.desc("last_seq"), "timestamp", "partition", "offset")
    return Window.partitionBy(*RECORD_ID[:3]).orderBy(*ordered)


def dead_letter_rows(parsed: DataFrame) -> DataFrame:
    """Return the rows of the table ``dead_letter_rows``."""
    dead = parsed.where(F.col("reason").isNotNull()).withColumn("day", F.to_date("timestamp"))
    return dead.select(*[F.col(column.name).cast(column.type) for column in DEAD_LETTERS.columns])


def explode_events(parsed: DataFrame, *kinds: str) -> DataFrame:
    """Return one row for each event of these kinds of the good envelopes: RECORD_ID's first three, and ``event``.

    What was left out on the wire is NULL in it (see ``fields_with_defaults``), as is what its kind does not have.
    """
    single = parsed.where(F.col("reason").isNull()).select(*RECORD_ID[:3], F.explode("events").alias("event"))
    return single.where(F.col("event.kind").isin(*kinds))


def fields_with_defaults(struct: str, fields: Sequence[EventField]) -> list[str]:
    """Return SQL of the fields of the column ``struct``, with defaults in place of what was left out."""
    return [f"{_value_or_default(f'{struct}.{field.name}', field)} AS {field.name}" for field in fields]


def _value_or_default(value: str, field: EventField) -> str:
    if field.type.startswith(("array", "map")):
        return f"coalesce({value}, {field.type.split('<')[0]}())"
    return value if field.required or field.default is None else f"coalesce({value}, {field.default!r})"


def _digests_sql(events: str) -> str:
    """Return SQL of the digests of ``explode_events``, as of ``dedup_ranges.AuditRecord``.

    They distinguish records by chance, not against somebody who knows the events before they are sent. ``dropped`` and
    ``sent_at`` of an envelope are not in it: they differ when the same events are sent again.
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
    """Return struct<reason, detail> of what is wrong with the record in ``value`` and ``read``, NULL if nothing is.

    As SQL text: built column by column in Python, so many conditions take seconds for each query.
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
    return F.expr("CASE " + " ".join(f"WHEN {case} THEN {said}" for case, said in cases.items()) + " END")


def _reason_struct(reason: str, detail: str = "CAST(NULL AS STRING)") -> str:
    return f"struct({reason} AS reason, {detail} AS detail)"


def _field_fault(of: str, fields: Sequence[EventField], path: str = "") -> str:
    """Return SQL of the first fault in a field of the object ``of``: ``<reason> <path>``, NULL where there is none.

    What was left out has a default, so NULL is no fault but where the field is required.
    """
    faults = [
        f"WHEN {fails} THEN '{reason} {path}{field.name}'"
        for field in fields
        for reason, fails in _field_checks(of, field)
    ]
    parts = [f"CASE {' '.join(faults)} END"] if faults else []
    for field in fields:
        if field.fields:
            item, inside = f"one_of_{field.name}", f"{path}{field.name}[]."
            first = _field_fault(item, field.fields, inside)
            if field.kinds:
                of_kind = [
                    f"WHEN '{kind}' THEN {_field_fault(item, more, inside)}" for kind, more in field.kinds.items()
                ]
                first = f"coalesce({first}, CASE {item}.kind {' '.join(of_kind)} END)"
            parts.append(f"get(array_compact(transform({of}.{field.name}, {item} -> {first})), 0)")
    return f"coalesce({', '.join(parts)})"


def _field_checks(of: str, field: EventField) -> Iterator[tuple[str, str]]:
    """What can be wrong with one field of ``of``, but for what is inside of an array: reason, and SQL of when."""
    value = f"{of}.{field.name}"
    if field.required:
        yield "missing_field", f"{value} IS NULL"
    ends = [f"{value} < {field.least}"] if field.least is not None else []
    ends += [f"{value} > {field.most}"] if field.most is not None else []
    if ends:
        yield "bad_value", " OR ".join(ends)
    if field.allowed:
        yield "bad_value", f"{value} NOT IN ({', '.join(map(repr, field.allowed))})"
