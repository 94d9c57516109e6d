"""The tables ``produced`` and ``mirror_check``."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.schemas import COMPLETENESS, PRODUCED
from spark_jobs.tables.produced import mirror_sides
from tests.spark import derived
from tests.spark.decoded import decoded
from tests.spark.derived import after
from tests.spark.envelopes import FETCH, PRODUCE, connection, encoded, event, partition
from tests.spark.stored import Row, rows

PATTERNS = Mirror(name="m", source_cluster_id="east", target_cluster_id="west", topics="orders|pay.*", prefix="east.")
SIDES = mirror_sides([PATTERNS])


@pytest.mark.promise(
    "tables/produced.md", "`produced` has a row for each batch that a request brought to a topic of a mirror."
)
def test_each_partition_of_a_request_is_a_row() -> None:
    first = partition(producer_id=7, producer_epoch=1, base_sequence=30, base_offset=500, partition=3)
    request = event(PRODUCE, first, partition(records=2, bytes=20), partition(records=0), partition("other"))
    others = [event(FETCH, partition()), connection()]
    rows = decoded("produced", [encoded(request, *others, cluster_id="east")], mirrors=SIDES)
    (row,) = [row for row in rows if row.producer_id == 7]
    assert row == {
        "day": date(2026, 9, 22), "at": datetime(2026, 9, 22, 12), "cluster_id": "east", "broker_id": 1,
        "topic": "orders", "partition": 3, "principal": "User:ANONYMOUS", "client_id": "app", "producer_id": 7,
        "producer_epoch": 1, "base_sequence": 30, "base_offset": 500, "outcome": "acknowledged", "records": 10,
        "bytes": 100,
    }  # fmt: skip
    (other,) = [row for row in rows if row.producer_id == -1]
    assert (other.producer_epoch, other.base_sequence, other.base_offset, other.records) == (-1, -1, -1, 2)


def test_what_became_of_it() -> None:
    """Of a duplicate (error 46) the broker says that it has the records."""
    reported = {
        "ok": event(PRODUCE, partition("pay-ok")),
        "denied": event(PRODUCE, partition("pay-denied", error_code=29)),
        "duplicate": event(PRODUCE, partition("pay-duplicate", error_code=46)),
        "acks=0": event(PRODUCE, partition("pay-acks0"), outcome="no_response"),
        "lost": event(PRODUCE, partition("pay-lost"), outcome="connection_lost"),
    }
    rows = decoded("produced", [encoded(*reported.values(), cluster_id="east")], mirrors=SIDES)
    assert {row.topic: row.outcome for row in rows} == {
        "pay-ok": "acknowledged", "pay-denied": "rejected", "pay-duplicate": "acknowledged", "pay-acks0": "unconfirmed",
        "pay-lost": "unconfirmed",
    }  # fmt: skip


@pytest.mark.promise("tables/produced.md", "Only topics of declared mirrors are in `produced`, on either side.")
def test_only_topics_of_a_mirror_are_kept_on_either_side() -> None:
    names = ("orders", "orders2", "payments", "east.orders", "eastXorders", "east.clicks", "clicks", "east.payments")
    request = event(PRODUCE, *[partition(name) for name in names])
    values = [encoded(request, cluster_id=cluster) for cluster in ("east", "west", "north")]
    of_prefix = {("east", "orders"), ("east", "payments"), ("west", "east.orders"), ("west", "east.payments")}
    plain = PATTERNS.model_copy(update={"name": "n", "prefix": "", "topics": "clicks", "target_cluster_id": "north"})
    both = of_prefix | {("east", "clicks"), ("north", "clicks")}
    for mirrors, expected in (([PATTERNS], of_prefix), ([PATTERNS, plain], both), ([], set())):
        rows = decoded("produced", values, mirrors=mirror_sides(mirrors))
        assert {(row.cluster_id, row.topic) for row in rows} == expected, mirrors


Batches = Sequence[dict[str, Any]]

MIRROR = Mirror(
    name="m", source_cluster_id="east", target_cluster_id="west", topics="orders.*", prefix="east.",
    principals=("User:mirror",), lag=timedelta(minutes=5),
)  # fmt: skip
DAY = 86_400


def batch(topic: str = "orders", *, at: float = 0, **changes: Any) -> dict[str, Any]:
    """A batch of 10 records of an idempotent producer, acknowledged."""
    key = {"day": after(at).date(), "at": after(at), "cluster_id": "east", "broker_id": 1, "partition": 0}
    numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "base_offset": 0}
    reported = {"principal": "User:app", "client_id": "app", "outcome": "acknowledged", "records": 10, "bytes": 100}
    return {**key, **numbers, **reported, "topic": topic, **changes}


def copied(topic: str = "east.orders", **changes: Any) -> dict[str, Any]:
    return batch(topic, **{"cluster_id": "west", "principal": "User:mirror", "producer_id": 9, **changes})


def stream(make: Any, count: int, *, at: float = 0, every: float = 0.1, **changes: Any) -> list[dict[str, Any]]:
    return [
        make(**{"at": at + n * every, "base_sequence": 10 * n, "base_offset": 10 * n, **changes}) for n in range(count)
    ]


def heard(until: float, *clusters: str, **changes: Any) -> Batches:
    """Rows of ``completeness``: the clusters' sidecars were last heard of in the minute that ends then.

    On the days before they were to the end.
    """
    minutes = [after(at) for at in range(DAY // 2 - 60, int(until) - 60, DAY)] + [after(until - 60)]
    return [
        {
            "day": minute.date(), "minute": minute, "last_status": minute, "cluster_id": cluster, "broker_id": 1,
            "boot_id": "boot", **changes,
        }
        for cluster in clusters or ("east", "west")
        for minute in minutes
    ]  # fmt: skip


def made(
    batches: Batches, until: float = 3_600, mirrors: Sequence[Mirror] = (MIRROR,), since: date | None = None
) -> list[Row]:
    reported = heard(until) if isinstance(until, int) else until
    inputs = {"produced": rows(PRODUCED, *batches), "completeness": rows(COMPLETENESS, *reported)}
    found = derived.rows("mirror_check", inputs, Definitions(mirrors=tuple(mirrors)), since)
    return sorted(found, key=lambda row: (row.mirror, row.source_topic, row.day))


def counts(row: Row) -> dict[str, int]:
    """What is not 0 of a row's numbers of its day, and what is wrong."""
    names = ("produced_records", "mirrored_records", "retried_records", "unconfirmed_records", "missing_records",
             "surplus_records")  # fmt: skip
    return {name.removesuffix("_records"): row[name] for name in names if row[name]}


@pytest.mark.promise(
    "tables/mirror_check.md", "`mirror_check` says how many of the produced records are missing in the other cluster."
)
def test_a_mirror_that_drops_7_of_10000() -> None:
    (row,) = made([*stream(batch, 1_000), *stream(copied, 999, at=1), copied(at=101, base_sequence=9_990, records=3)])
    assert row == {
        "day": date(2026, 9, 22), "mirror": "m", "source_cluster_id": "east", "source_topic": "orders",
        "target_cluster_id": "west", "target_topic": "east.orders", "produced_records": 10_000,
        "mirrored_records": 9_993, "retried_records": 0, "unconfirmed_records": 0, "since": date(2026, 9, 22),
        "produced_total": 10_000, "mirrored_total": 9_993, "due_total": 10_000, "missing_records": 7,
        "behind_records": 7, "surplus_records": 0, "state": "missing", "exact": True, "as_of": after(3_540),
    }  # fmt: skip


@pytest.mark.promise(
    "tables/mirror_check.md", "A batch that an idempotent producer sent twice counts once in `mirror_check`."
)
def test_forced_retries_make_no_difference() -> None:
    """The answer of each tenth batch was lost: sent again it is answered as before, or as a duplicate."""
    sent = stream(batch, 100)
    lost = [{**one, "outcome": "unconfirmed", "base_offset": -1} for one in sent[::10]]
    again = [{**one, "at": one["at"] + timedelta(seconds=1)} for one in sent[::10]]
    again[0] = {**again[0], "base_offset": -1}
    twice = [{**one, "at": one["at"] + timedelta(seconds=2)} for one in sent[5::50]]
    mirrored = stream(copied, 100, at=1)
    retried = [{**one, "at": one["at"] + timedelta(seconds=1), "base_offset": -1} for one in mirrored[:3]]
    rest = [one for n, one in enumerate(sent) if n % 10]
    (row,) = made([*rest, *lost, *again, *twice, *mirrored, *retried])
    assert counts(row) == {"produced": 1_000, "mirrored": 1_000, "retried": 10 * (10 + 2 + 3)}
    assert (row.state, row.exact, row.due_total) == ("equal", True, 1_000)


def test_what_distinguishes_batches() -> None:
    plain = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    cases = {
        "another partition": [batch(), batch(partition=1)],
        "another epoch": [batch(), batch(producer_epoch=1)],
        "another producer": [batch(), batch(producer_id=2)],
        "numbers that begin anew": [batch(), batch(at=1, base_offset=2**31)],
        "not idempotent": [batch(**plain), batch(**plain, base_offset=10)],
        "a topic that was made anew": [batch(**plain), batch(**plain, at=60)],
        "without an offset": [batch(**plain, base_offset=-1), batch(**plain, base_offset=-1)],
    }
    alike = {
        "sent again": [batch(), batch(at=1)],
        "a duplicate": [batch(), batch(at=1, base_offset=-1)],
        "two duplicates": [batch(base_offset=-1), batch(at=1, base_offset=-1)],
        "reported again": [batch(**plain), batch(**plain)],
    }
    reported = {
        name: [{**one, "topic": f"orders-{number}"} for one in case]
        for number, (name, case) in enumerate({**cases, **alike}.items())
    }
    found = {row.source_topic: counts(row) for row in made([one for case in reported.values() for one in case])}
    assert {name: found[reported[name][0]["topic"]] for name in reported} == {
        **{name: {"produced": 20, "missing": 20} for name in cases},
        **{name: {"produced": 10, "retried": 10, "missing": 10} for name in alike},
    }


@pytest.mark.promise("jobs.md", "A record counts as missing only when it is later than the `lag` of its mirror.")
def test_what_is_not_due_yet_is_not_missing() -> None:
    """Ten records each at second 0, 100 and 200, of which the last twenty have not arrived."""
    reported = [*stream(batch, 3, every=100), copied(at=1)]
    found = {until: made(reported, until)[0] for until in (60, 360, 420, 480, 540)}
    assert {until: (row.state, row.due_total, row.missing_records) for until, row in found.items()} == {
        60: ("lagging", 0, 0), 360: ("lagging", 10, 0), 420: ("missing", 20, 10), 480: ("missing", 20, 10),
        540: ("missing", 30, 20),
    }  # fmt: skip


def flowing(copied_after: float) -> list[dict[str, Any]]:
    """Ten records each ten seconds from second 900 on, which are copied."""
    on = {"count": 270, "every": 10, "producer_epoch": 1}
    return [*stream(batch, at=900, **on), *stream(copied, at=900 + copied_after, **on)]


def test_what_was_overdue_is_missing_while_records_flow_until_it_comes() -> None:
    lost = [batch(), copied(at=1, records=3)]
    (row,) = made([*lost, *flowing(1)])
    assert (row.state, row.produced_total, row.mirrored_total) == ("missing", 2_710, 2_703)
    assert (row.due_total, row.missing_records, row.behind_records) == (2_420, 7, 7)
    # The next day continues from there.
    later = stream(batch, 360, at=DAY, every=10, producer_epoch=2)
    later += stream(copied, 360, at=DAY + 1, every=10, producer_epoch=2)
    found = made([*lost, *flowing(1), *later], DAY + 3_600)
    assert [(row.missing_records, row.behind_records, row.state) for row in found] == [(7, 7, "missing")] * 2
    # What was overdue and came is not missing.
    (row,) = made([batch()], 720)
    assert (row.state, row.missing_records, row.behind_records) == ("missing", 10, 10)
    for came in (800, 2_000):  # before others, and while they flow
        (row,) = made([batch(), copied(at=came), *flowing(1)])
        assert (row.state, row.missing_records, row.behind_records) == ("equal", 0, 0)
    # Of records that flow without a pause, ten of those of the last five minutes are not there: it might be a delay.
    (row,) = made([*flowing(1)[:270], *flowing(1)[271:]])
    assert (row.state, row.missing_records, row.behind_records) == ("lagging", 0, 10)


@pytest.mark.promise("tables/mirror_check.md", "Totals of `mirror_check` count from the oldest day that is kept.")
def test_totals_count_from_the_oldest_day_that_is_kept() -> None:
    reported = [batch(at=-DAY), batch(base_sequence=10, base_offset=10), copied(base_sequence=10, base_offset=10)]
    found = made(reported)
    assert [(row.day.day, row.since.day, row.produced_total, row.missing_records) for row in found] == [
        (21, 21, 10, 0),
        (22, 21, 20, 10),
    ]
    (row,) = made(reported[1:])
    assert (row.day.day, row.since.day, row.produced_total, row.missing_records) == (22, 22, 10, 0)


def test_as_long_as_one_cluster_is_behind_nothing_is_missing_or_surplus() -> None:
    reported = [batch(), batch(at=900, base_sequence=10, base_offset=10), copied(at=1)]
    (row,) = made(reported, [*heard(3_600, "east"), *heard(960, "west")])
    assert (row.state, row.missing_records, row.as_of) == ("lagging", 0, after(900))
    twice = [batch(), copied(at=1), copied(at=900, base_sequence=10, base_offset=10)]
    (row,) = made(twice, [*heard(300, "east"), *heard(3_600, "west")])
    assert (row.state, row.mirrored_total, row.surplus_records) == ("equal", 20, 0)
    for known in ("east", "west"):
        (row,) = made(reported, heard(3_600, known))
        assert (row.state, row.as_of, row.missing_records, row.surplus_records) == ("unknown", None, 0, 0)


@pytest.mark.promise("tables/mirror_check.md", "As long as a sidecar is silent, what it did not report is not missing.")
def test_what_a_silent_sidecar_did_not_report_is_not_missing() -> None:
    """Half of what was mirrored passed broker 2 of the target, whose sidecar was last heard of after a minute."""
    reported = [*stream(batch, 100, at=70), *stream(copied, 50, at=71)]
    on = heard(3_600)
    cases = {
        "silent": [*on, *heard(60, "west", broker_id=2)],
        "silent source": [*on, *heard(60, "east", broker_id=2)],
        "ended": [*on, *heard(60, "west", broker_id=2, ended=True)],
        "came back": [*on, *heard(60, "west", broker_id=2), *heard(3_600, "west", broker_id=2, boot_id="next")],
        "on its way": [*on, *heard(3_480, "west", broker_id=2)],
        "no status since": [*on, *heard(60, "west", broker_id=2), *heard(3_600, "west", broker_id=2, last_status=None)],
    }
    found = {name: made(reported, case)[0] for name, case in cases.items()}
    assert {name: (row.state, row.missing_records, row.as_of) for name, row in found.items()} == {
        "silent": ("unknown", 0, after(0)), "silent source": ("unknown", 0, after(0)),
        "ended": ("missing", 500, after(3_540)), "came back": ("missing", 500, after(3_540)),
        "on its way": ("missing", 500, after(3_420)), "no status since": ("unknown", 0, after(0)),
    }  # fmt: skip
    # What is missing for sure is so whoever is silent.
    silent = [*heard(3_600), *heard(600, "west", broker_id=2)]
    (row,) = made([batch(), copied(at=1, records=3)], silent)
    assert (row.state, row.missing_records, row.as_of) == ("missing", 7, after(540))


def test_what_was_on_its_way_when_the_oldest_day_began_is_no_surplus() -> None:
    """The table keeps no day before: 10 of the records that arrived were produced then."""
    midnight = -DAY / 2
    reported = [copied(at=midnight + 299), batch(at=midnight + 10, base_sequence=10, base_offset=10),
            copied(at=midnight + 300, base_sequence=10, base_offset=10)]  # fmt: skip
    (row,) = made(reported)
    assert (row.state, row.produced_total, row.mirrored_total) == ("equal", 10, 20)
    (row,) = made([*reported, copied(at=midnight + 301, base_sequence=20, base_offset=20)])
    assert (row.state, row.surplus_records) == ("surplus", 10)


def test_days_add_up_and_only_those_asked_for_are_given() -> None:
    """What is produced a minute before midnight arrives on the next day, but for one record."""
    midnight = DAY / 2
    reported = [batch(at=0), copied(at=1), batch(at=midnight - 60, base_sequence=10, base_offset=10),
            copied(at=midnight + 1, base_sequence=10, base_offset=10, records=9),
            batch(at=midnight + 3 * DAY, base_sequence=20, base_offset=20)]  # fmt: skip
    found = made(reported, int(midnight + 3 * DAY + 60))
    assert [(row.day.day, counts(row), row.produced_total, row.mirrored_total, row.state) for row in found] == [
        (22, {"produced": 20, "mirrored": 10}, 20, 10, "lagging"),
        (23, {"mirrored": 9, "missing": 1}, 20, 19, "missing"),
        (26, {"produced": 10, "missing": 1}, 30, 19, "missing"),
    ]
    assert [row.as_of for row in found] == [
        after(midnight - 60), after(midnight + DAY - 60), after(midnight + 3 * DAY),
    ]  # fmt: skip
    # What is reported of later days changes nothing of a day.
    earlier, later = made(reported[:2] + reported[2:4], int(midnight + 60))
    assert (earlier, later.state, later.as_of) == (found[0], "lagging", after(midnight))
    assert made(reported, int(midnight + 3 * DAY + 60), since=date(2026, 9, 23)) == found[1:]
    # The mirror began anew: the same records in batches of other numbers.
    (row,) = made([batch(), copied(at=1), copied(at=2, producer_epoch=1)])
    assert (counts(row), row.state) == ({"produced": 10, "mirrored": 20, "surplus": 10}, "surplus")


@pytest.mark.promise(
    "tables/mirror_check.md", "`mirror_check` is not `exact` where rollups hide which batches came twice."
)
def test_a_rollup_is_counted_as_it_is() -> None:
    rolled = dict.fromkeys(("partition", "producer_id", "producer_epoch", "base_sequence", "base_offset"))
    reported = [
        *[batch(**rolled), batch(**rolled), batch(**rolled, outcome="rejected")],
        *[batch(**rolled, outcome="unconfirmed"), copied(**rolled, records=20)],
        *[batch("orders2"), copied("east.orders2")],
    ]
    first, second = made(reported)
    assert (counts(first), first.exact) == ({"produced": 20, "mirrored": 20, "unconfirmed": 10}, False)
    assert (counts(second), second.exact) == ({"produced": 10, "mirrored": 10}, True)


def test_each_mirror_counts_its_own_producers_and_topics() -> None:
    fan_out = MIRROR.model_copy(update={"name": "n", "target_cluster_id": "north", "prefix": "", "principals": ()})
    by_id = fan_out.model_copy(update={"name": "by-id", "client_ids": ("copier",)})
    reported = [
        batch(), batch("east.orders", cluster_id="west"), batch("clicks"), copied(records=4),
        batch(cluster_id="north"), batch("east.orders", cluster_id="north"),
        batch(cluster_id="north", producer_id=3, client_id="copier", records=1),
    ]  # fmt: skip
    clusters = [*heard(3_600), *heard(3_600, "north")]
    found = made(reported, clusters, [MIRROR, fan_out, by_id])
    assert {(row.mirror, row.source_topic, row.target_topic): counts(row) for row in found} == {
        ("m", "orders", "east.orders"): {"produced": 10, "mirrored": 4, "missing": 6},
        ("n", "orders", "orders"): {"produced": 10, "mirrored": 11, "surplus": 1},
        ("by-id", "orders", "orders"): {"produced": 10, "mirrored": 1, "missing": 9},
    }
