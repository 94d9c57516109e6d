"""The tables that the job of another release makes of the same topics, row for row: JOBS_BEFORE=CHECKOUT.

CHECKOUT: of ``f81a525``, the last one whose job computed in Spark SQL; ``make setup`` was run in it. All of it takes
some fifteen minutes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deltalake import DeltaTable

from proxy.local import cluster, demo, sidecars
from proxy.local.broker import AUDIT_TOPIC
from spark_jobs.schemas import DEAD_LETTER_REASONS, TABLES
from tests.ledger.build import DEFINITIONS, Built
from tests.ledger.stored import merged, rows
from tests.spark import mixed_topic
from tests.spark.test_real_load import Load, loaded  # noqa: F401 - a fixture
from tests.tools.bench.jobs_cost import JobProcess

CHECKOUT = os.environ.get("JOBS_BEFORE", "")
REQUESTS = int(os.environ.get("JOBS_REQUESTS", "1000000"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.skipif(not CHECKOUT, reason="takes minutes, and another checkout: JOBS_BEFORE=CHECKOUT"),
    pytest.mark.timeout(3_600),
]

RENAMED = {"inventory": {"told": "listings"}}
"""Columns that have other names since. All else is equal."""

RECORDS_PER_BATCH = 4_000
"""Of both jobs: which of two copies comes first may depend on the batch, and the old one keeps a batch in memory."""

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "definitions"

MIRROR = f"""
apiVersion: brokerside/v1
kind: Mirror
metadata: {{name: copy}}
spec: {{sourceClusterId: {mixed_topic.CLUSTER}, targetClusterId: elsewhere, topics: "team-1.*"}}
"""


class Topic(NamedTuple):
    """An audit topic, and the broker that has it."""

    bootstrap: str
    name: str


def test_of_the_scripted_load(ledger_root: Built, tmp_path: Path) -> None:
    topics = [Topic(ledger_root.bootstrap, name) for name in ledger_root.topics.values()]
    compare(topics, tmp_path, [DEFINITIONS])


def test_of_real_clients(loaded: Load, tmp_path: Path) -> None:  # noqa: F811
    topics = [Topic(place.state.internal_bootstrap, AUDIT_TOPIC) for place in (loaded.source, loaded.target)]
    compare(topics, tmp_path, [loaded.root.parent / "definitions.yaml"])


def test_of_the_demo(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    try:
        assert demo.demo(folder, keep=True) == 0
        sidecars.stop_all(folder / "cluster")  # else they report more between the two jobs
        state = cluster.status(folder / "cluster")
        assert state
        compare([Topic(state.internal_bootstrap, AUDIT_TOPIC)], tmp_path, [demo.DEFINITIONS])
    finally:
        sidecars.stop_all(folder / "cluster")
        cluster.down(folder / "cluster")


def test_of_a_million_requests_among_everything_else(bootstrap: str, tmp_path: Path) -> None:
    """A thousand bad records of each reason, repeated records, whole and in halves, rollups, and late ones."""
    topic = Topic(bootstrap, "audit-mixed")
    of_each_reason = REQUESTS // 1_000
    mixed_topic.write(*topic, REQUESTS, of_each_reason)
    mirror = tmp_path / "mirror.yaml"
    mirror.write_text(MIRROR)
    keys = {name: key.hex() for name, key in mixed_topic.KEYS.items()}
    definitions = [mirror, EXAMPLES / "slo.yaml", EXAMPLES / "prices.yaml"]
    compare([topic], tmp_path, definitions, hmac_keys=keys)
    reasons = Counter(row["reason"] for row in rows(tmp_path / "now", "dead_letters"))
    assert reasons == dict.fromkeys(DEAD_LETTER_REASONS, of_each_reason)


def compare(topics: Sequence[Topic], folder: Path, definitions: Iterable[Path], **options: Any) -> None:
    """Run both jobs over ``topics``, into one root each below ``folder``, and compare all rows of all tables."""
    given = {"definitions": [str(each) for each in definitions], "records_per_batch": RECORDS_PER_BATCH, **options}
    for name, checkout in (("before", Path(CHECKOUT)), ("now", None)):
        for topic in topics:
            with JobProcess(topic.bootstrap, "short", checkout=checkout) as job:
                cost = job.do("job", topic.name, str(folder / name), "", given)
            print(f"{topic.name} {name}: {cost.result}, {cost.cpu_s:.0f} CPU s, {cost.wall:.0f} s", flush=True)
    different = {}
    for table in TABLES:
        before, now = (read(folder / name, table) for name in ("before", "now"))
        print(f"  {table}: {now.total():,} rows", flush=True)
        if before != now:
            different[table] = (sorted((before - now).elements())[:3], sorted((now - before).elements())[:3])
    assert not different
    assert read(folder / "now", "traffic")


def read(root: Path, table: str) -> Counter[str]:
    """Return the merged rows of a table, as texts, by how often there are; none of one that was not made."""
    path = f"{root}/{table}"
    if not DeltaTable.is_deltatable(path):
        return Counter()
    stored = DeltaTable(path).to_pyarrow_table()
    renamed = RENAMED.get(table, {})
    stored = stored.rename_columns([renamed.get(name, name) for name in stored.column_names])
    described = TABLES[table]
    assert set(stored.column_names) == {column.name for column in described.columns}
    return Counter(
        str([(name, plain(value)) for name, value in sorted(row.items())])
        for row in merged(described, stored.to_pylist())
    )


def plain(value: object) -> object:
    """Return ``value``; of floats 12 digits, as sums of them depend on their order."""
    return f"{value:.12g}" if isinstance(value, float) else value
