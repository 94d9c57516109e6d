"""The table ``traffic``: who did how much, by minute."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs import structs
from spark_jobs.parse import with_defaults
from spark_jobs.schemas import TOPIC_PARTITION, TRAFFIC

PRODUCE = 0
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000


def traffic(events: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key, of ``events`` (as ``parse.events`` gives them)."""
    ts = F.col("ts_request")
    midnight = ts - F.pmod(ts, F.lit(DAY_US))
    partition_failed = F.exists("topics", lambda topic: F.coalesce(topic["error_code"], F.lit(0)) != 0)
    requests = events.select(
        F.date_from_unix_date((midnight / DAY_US).cast("int")).alias("day"),
        F.timestamp_micros(ts - F.pmod(ts, F.lit(MINUTE_US))).alias("minute"),
        *["cluster_id", "broker_id", "listener", "api", "api_key", "principal", "client_id", "client_ip"],
        *["request_bytes", "response_bytes", "outcome", "throttle_ms", "topics"],
        ((F.col("error_code") != 0) | partition_failed).alias("failed"),
    )
    shares = requests.select("*", _shares()).select("*", *_of_partition())
    sums = shares.groupBy(*TRAFFIC.keys).agg(*[F.sum(value).alias(name) for name, value in _sums().items()])
    return sums.select(*[F.col(column.name).cast(column.type) for column in TRAFFIC.columns])


def _shares() -> Column:
    """Return the generator of a request's shares: first the request itself (``share`` NULL), then its partitions."""
    nothing = F.lit(None).cast(structs.struct_of(TOPIC_PARTITION))
    return F.posexplode(F.concat(F.array(nothing), F.col("topics"))).alias("place", "share")


def _of_partition() -> list[Column]:
    """Return what the share says of its partition; ``topic`` is NULL for the request itself."""
    fields = {field.name: field for field in TOPIC_PARTITION}
    topic, records, size, error = with_defaults(
        F.col("share"), [fields[name] for name in ("topic", "records", "bytes", "error_code")]
    )
    return [topic, records.alias("records"), size.alias("bytes"), error.alias("partition_error")]


def _sums() -> dict[str, Column]:
    """Return what each sum column adds up, by share. NULL adds nothing."""
    whole = F.col("share").isNull()
    answered = F.col("outcome") == "answered"
    accepted = F.col("partition_error") == 0
    produced = F.col("api_key") == PRODUCE
    confirmed = ~whole & answered & accepted
    unconfirmed = ~whole & produced & ~answered & accepted
    rejected = ~whole & produced & ~accepted
    # The first partition of a topic stands for the request; place 0 is the request itself.
    first_of_topic = F.array_position(F.col("topics.topic"), F.col("topic")) == F.col("place")
    records, size = F.col("records"), F.col("bytes")
    return {
        "requests": _if(whole, F.lit(1)),
        "request_bytes": _if(whole, F.col("request_bytes")),
        "response_bytes": _if(whole, F.col("response_bytes")),
        "errors": _if(whole & F.col("failed"), F.lit(1)),
        "connection_lost": _if(whole & (F.col("outcome") == "connection_lost"), F.lit(1)),
        "throttle_ms": _if(whole, F.greatest(F.col("throttle_ms"), F.lit(0))),
        "topic_requests": _if(~whole & first_of_topic, F.lit(1)),
        "records": _if(confirmed, records),
        "bytes": _if(confirmed, size),
        "unconfirmed_records": _if(unconfirmed, records),
        "unconfirmed_bytes": _if(unconfirmed, size),
        "rejected_records": _if(rejected, records),
        "rejected_bytes": _if(rejected, size),
    }


def _if(condition: Column, value: Column) -> Column:
    return F.when(condition, value.cast("bigint")).otherwise(F.lit(0).cast("bigint"))
