"""Kafka records in, audit envelopes and dead letters out. Pure: the same for a stream and for a backfill.

An envelope is taken whole or not at all: one bad event makes all of it a dead letter, so that nothing is half counted.
An event of a kind that is not known here is no bad one; it is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs import structs
from spark_jobs.schemas import DEAD_LETTERS, ENVELOPE, REQUEST_EVENT, SCHEMA_LEVEL, Field

SAMPLE_BYTES = 1024
"""Bytes of a dead letter's value that are kept."""

RECORD_ID = ("cluster_id", "broker_id", "boot_id", "first_seq")
"""What identifies an envelope: the same twice is one that was sent twice."""

POSITION = ("topic", "partition", "offset", "timestamp")
"""What Kafka says of a record."""


def parse(records: DataFrame) -> DataFrame:
    """Return one row for each Kafka record: its position, and the envelope's fields or the reason why there are none.

    ``records``: value (binary), topic, partition, offset, timestamp, as Kafka's source gives them. Result: the
    position; ``reason``, ``detail``, ``value_bytes`` and ``value_sample`` (NULL but for dead letters); the fields of
    the envelope (NULL for dead letters).
    """
    value = F.col("value")
    text = value.cast("string")
    # Spark's reader stops after the first JSON value and forgets what follows it, and it reads an array of envelopes
    # as its first one. Wrapped like this, a record that is not exactly one value loses `whole`.
    wrapped = F.concat(F.lit('{"envelope":'), text, F.lit(',"whole":true}'))
    read = F.from_json(wrapped, _wrapper(), {"columnNameOfCorruptRecord": "wrong_type", "allowSingleQuotes": "false"})
    checked = records.select(*POSITION, "value", read.alias("read")).select(
        *POSITION, "value", _fault().alias("fault"), F.col("read.envelope").alias("envelope")
    )
    dead = F.col("fault").isNotNull()
    sample = F.translate(F.base64(F.substring(value, 1, SAMPLE_BYTES)), "\r\n", "")
    return checked.select(
        *POSITION,
        F.col("fault.reason").alias("reason"),
        F.col("fault.detail").alias("detail"),
        F.when(dead, F.coalesce(F.octet_length(value), F.lit(0))).cast("bigint").alias("value_bytes"),
        F.when(dead, sample).alias("value_sample"),
        *[F.when(~dead, F.col("envelope")[field.name]).alias(field.name) for field in ENVELOPE],
    )


def deduplicate(parsed: DataFrame, window: str) -> DataFrame:
    """Return ``parsed`` with one row for each envelope; dead letters stay as many as they are.

    In a stream an envelope is known for ``window`` (as "2 hours") after it was first read. The watermark goes by the
    time of reading, which a replayed batch repeats exactly: an envelope that was sent late is never cut away.
    """
    dead_at = F.when(F.col("reason").isNotNull(), F.concat_ws("/", "topic", "partition", "offset"))
    keyed = parsed.withColumn("dead_at", dead_at)
    by = [*RECORD_ID, "dead_at"]
    if not keyed.isStreaming:
        return keyed.dropDuplicates(by).drop("dead_at")
    known = keyed.withColumn("read_at", F.current_timestamp()).withWatermark("read_at", window)
    return known.dropDuplicatesWithinWatermark(by).drop("dead_at", "read_at")


def dead_letters(parsed: DataFrame) -> DataFrame:
    """Return the rows of the table ``dead_letters``."""
    return parsed.where(F.col("reason").isNotNull()).select(*[column.name for column in DEAD_LETTERS.columns])


def requests(parsed: DataFrame) -> DataFrame:
    """Return one row for each request event of the good envelopes: RECORD_ID's first three, and the event's fields.

    Fields that were left out have their defaults; inside ``topics`` they are still NULL (see ``with_defaults``).
    """
    origin = RECORD_ID[:3]
    single = parsed.where(F.col("reason").isNull()).select(*origin, F.explode("events").alias("event"))
    return single.where("event.kind = 'request'").selectExpr(*origin, *with_defaults("event", REQUEST_EVENT))


def with_defaults(struct: str, fields: Sequence[Field]) -> list[str]:
    """Return SQL of the fields of the column ``struct``, with defaults in place of what was left out."""
    return [f"{_or_default(f'{struct}.{field.name}', field)} AS {field.name}" for field in fields]


def _or_default(value: str, field: Field) -> str:
    if field.type == "array":
        return f"coalesce({value}, array())"
    return value if field.required or field.default is None else f"coalesce({value}, {field.default!r})"


def _wrapper() -> StructType:
    return StructType(
        [
            StructField("envelope", structs.envelope()),
            StructField("whole", structs.ATOMIC["boolean"]()),
            StructField("wrong_type", StringType()),
        ]
    )


@dataclass(frozen=True)
class _Check:
    """One thing that can be wrong in an object. ``fails`` takes the SQL of the object and gives the SQL of a condition.

    NULL is not a failure: what was left out has a default.
    """

    reason: str
    path: str
    fails: Callable[[str], str]


def _fault() -> Column:
    """Return struct<reason, detail> of what is wrong with the record in ``value`` and ``read``, NULL if nothing is.

    As SQL text: built column by column in Python, so many conditions take seconds for each query.
    """
    envelope, events, first, last = (
        "read.envelope",
        "read.envelope.events",
        *(f"read.envelope.{n}_seq" for n in ("first", "last")),
    )
    size = f"size({events})"
    checks = sorted(_checks(ENVELOPE), key=lambda check: check.reason != "missing_field")
    named = " ".join(f"WHEN {check.fails(envelope)} THEN {_say(check.reason, repr(check.path))}" for check in checks)
    numbered = f"{last} - {first} + 1 = {size} AND get({events}, 0).seq = {first}"
    cases = {
        "value IS NULL": _say("empty"),
        "NOT is_valid_utf8(CAST(value AS STRING))": _say("not_utf8"),
        "read.whole IS NULL": _say("not_json"),
        f"{envelope}.schema_level > {SCHEMA_LEVEL}": _say(
            "schema_level_too_high", f"CAST({envelope}.schema_level AS STRING)"
        ),
        f"{envelope} IS NULL": _say("bad_value", "'the record is not a JSON object'"),
        "read.wrong_type IS NOT NULL": _say("bad_value", "'a value has the wrong type'"),
        # One pass over the events finds that something is wrong; only then each check is made again to say what.
        _any_fails(ENVELOPE)(envelope): f"CASE {named} END",
        f"{size} = 0": _say("bad_value", "'events'"),
        f"NOT ({numbered})": _say(
            "sequence_mismatch", f"format_string('%d to %d, %d events', {first}, {last}, {size})"
        ),
    }
    return F.expr("CASE " + " ".join(f"WHEN {case} THEN {said}" for case, said in cases.items()) + " END")


def _say(reason: str, detail: str = "CAST(NULL AS STRING)") -> str:
    return f"struct('{reason}' AS reason, {detail} AS detail)"


def _own_checks(field: Field) -> Iterator[_Check]:
    """What can be wrong with one field, but for what is inside of an array."""
    if field.required:
        yield _Check("missing_field", field.name, lambda of: f"{of}.{field.name} IS NULL")
    if field.least is not None:
        yield _Check("bad_value", field.name, lambda of: f"{of}.{field.name} < {field.least}")
    if field.most is not None:
        yield _Check("bad_value", field.name, lambda of: f"{of}.{field.name} > {field.most}")
    if field.allowed:
        allowed = ", ".join(map(repr, field.allowed))
        yield _Check("bad_value", field.name, lambda of: f"{of}.{field.name} NOT IN ({allowed})")


def _checks(fields: Sequence[Field]) -> Iterator[_Check]:
    """Every check of an object, also of what is inside of its arrays, each with its path."""
    for field in fields:
        yield from _own_checks(field)
        inside = list(_checks(field.fields))
        for kind, more in field.kinds.items():
            inside += [replace(check, fails=_if_kind(kind, check.fails)) for check in _checks(more)]
        for inner in inside:
            yield _Check(inner.reason, f"{field.name}[].{inner.path}", _inside(field.name, inner.fails))


def _any_fails(fields: Sequence[Field]) -> Callable[[str], str]:
    """Return all checks of an object in one, each array passed once."""
    fails = [check.fails for field in fields for check in _own_checks(field)]
    for field in fields:
        if field.fields:
            inside = [_any_fails(field.fields)]
            inside += [_if_kind(kind, _any_fails(more)) for kind, more in field.kinds.items()]
            fails.append(_inside(field.name, _any(inside)))
    return _any(fails)


def _any(fails: Sequence[Callable[[str], str]]) -> Callable[[str], str]:
    return lambda of: " OR ".join(fail(of) for fail in fails)


def _if_kind(kind: str, fails: Callable[[str], str]) -> Callable[[str], str]:
    return lambda of: f"({of}.kind = '{kind}' AND ({fails(of)}))"


def _inside(array: str, fails: Callable[[str], str]) -> Callable[[str], str]:
    item = f"one_of_{array}"
    return lambda of: f"exists({of}.{array}, {item} -> {fails(item)})"
