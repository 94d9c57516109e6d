"""A job with the keys of the sidecars: what they have not signed is a dead letter, and nobody sees a key."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from proxy.config.hmac_keys import AUDIT
from proxy.core.authentication import Authenticator
from spark_jobs.batch import partial_rows
from spark_jobs.decode import DecodeOptions
from spark_jobs.query import query
from spark_jobs.run import backfill, run
from tests.spark.conftest import AuditTopic
from tests.spark.envelopes import METADATA, encoded, event

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Header = tuple[str, bytes | None]

OLD, NEW = {"old": b"o" * 32}, {"new": b"n" * 100}


@pytest.mark.promise("security.md", "Plans and event logs of Spark hold no key of `--hmac-keys`.")
@pytest.mark.slow
def test_no_plan_holds_a_key(spark: SparkSession) -> None:
    """Plans are in the event log and the UI."""
    columns = "key binary, value binary, headers array<struct<key string, value binary>>, topic string, partition int"
    records = spark.createDataFrame([], f"{columns}, offset bigint, timestamp timestamp")
    found = partial_rows(records, DecodeOptions(("traffic",), hmac_keys={"k1": b"secret-" * 5}))
    found.collect()
    plan = found._jdf.queryExecution().toString() + found._jdf.queryExecution().explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("cost")
    )
    secret = b"secret-secret"
    assert "MapInArrow" in plan
    assert secret.decode() not in plan
    assert secret.hex() not in plan.lower()
    assert b64encode(secret[:12]).decode() not in plan
    assert ", ".join(str(byte) for byte in secret) not in plan


@pytest.mark.promise("jobs.md", "Records without a valid signature become dead letters, and take no event number.")
def test_forged_envelopes_are_dead_letters_and_take_no_number(
    audit: AuditTopic, jars: list[Path], tmp_path: Path
) -> None:
    """Of 1,000 requests somebody would hide most by records that come first, with the boot id and coming numbers."""
    real = [encoded(*[event(METADATA) for _ in range(50)], first_seq=1 + 50 * n) for n in range(20)]
    forged = [encoded(event(METADATA), first_seq=1 + 50 * n) for n in range(20)]
    stolen = Authenticator(AUDIT, {"old": b"x" * 32}).header(None, forged[0])
    strange = Authenticator(AUDIT, {"strange": b"x" * 32}).header(None, forged[1])
    send(audit, [(forged[0], [stolen]), (forged[1], [strange]), *((each, []) for each in forged[2:])])
    # Half of the sidecars have the new key already.
    send(audit, [(each, [Authenticator(AUDIT, (OLD, NEW)[n % 2]).header(None, each)]) for n, each in enumerate(real)])

    root = tmp_path / "tables"
    jobs: dict[str, Any] = {
        "bootstrap_servers": audit.bootstrap, "topic": audit.name, "tables": str(root), "jars": jars,
    }  # fmt: skip
    only = ["traffic", "dead_letters", "completeness"]
    done = run(**jobs, only=only, available_now=True, hmac_keys=OLD | NEW)
    assert (done.records, done.events, done.dead_letters, done.duplicates) == (40, 1000, 20, 0)
    again = backfill(**jobs, first=None, last=None, hmac_keys=OLD | NEW)
    assert (again.events, again.dead_letters) == (1000, 20)
    assert query(root, "SELECT sum(requests)::BIGINT FROM traffic")[1] == [(1_000,)]
    lost = query(root, "SELECT sum(events)::BIGINT, sum(conflicts)::BIGINT FROM completeness")[1]
    assert lost == [(1_000, 0)]
    letters = query(root, "SELECT reason, count(*), min(value_bytes) > 100 FROM dead_letters GROUP BY ALL ORDER BY ALL")
    assert letters[1] == [("bad_signature", 1, True), ("unknown_key", 1, True), ("unsigned", 18, True)]


def send(audit: AuditTopic, records: Sequence[tuple[bytes, Sequence[Header]]]) -> None:
    producer = Producer({"bootstrap.servers": audit.bootstrap})
    for value, headers in records:
        producer.produce(audit.name, value, partition=0, headers=list(headers))
    assert not producer.flush(30)
