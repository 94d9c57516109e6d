"""The tables that are computed from those of test_ledger.py equal their books, too."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from tests.ledger.books import Row, advice, cost, groups, instant, mirror, slo, topics
from tests.ledger.build import Built
from tests.ledger.cast import BEGIN
from tests.ledger.compare import assert_equal
from tests.ledger.stored import rows

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def test_slo(ledger_root: Built) -> None:
    book = slo.slo(ledger_root.emitted.acts)
    assert_equal(rows(ledger_root.root, "slo"), slo.KEYS, book)


def test_cost(ledger_root: Built) -> None:
    """Every charge to the last digit; each row to less than one of them."""
    book = cost.bills(ledger_root.emitted.acts, ledger_root.emitted.envelopes)
    found: dict[cost.Charge, dict[object, Row]] = defaultdict(dict)
    for row in rows(ledger_root.root, "cost"):
        charge, who = cost.stored(row)
        assert who not in found[charge], "twice"
        found[charge][who] = row
    assert set(found) == set(book)
    for charge, bill in book.items():
        of_charge = found[charge]
        assert set(of_charge) == set(bill.paid), charge
        assert sum(Fraction(row["BilledCost"]) for row in of_charge.values()) == bill.amount, charge
        for who, row in of_charge.items():
            assert abs(Fraction(row["BilledCost"]) - bill.paid[who]) < cost.UNIT
            assert abs(Fraction(row["PricingQuantity"]) - bill.quantities[who]) <= cost.UNIT / 2
            assert row["Tags"] == (list(cost.OWNERS["tags"].get(row["x_Team"], {}).items()) or None)


def test_topics(ledger_root: Built) -> None:
    book = topics.topics(ledger_root.emitted.acts, ledger_root.emitted.envelopes)
    found = rows(ledger_root.root, "topics")
    assert_equal(found, ("cluster_id", "topic"), book)
    (back,) = [run.started for run in ledger_root.world.runs if run.boot == "w2-again"]
    assert {(row["cluster_id"], row["covered_since"]) for row in found} == {
        ("east", instant(BEGIN)),
        ("west", instant(back)),
    }
    assert {row["state"] for row in found} == {"used", "polled_only", "unused", "unknown"}


def test_groups(ledger_root: Built) -> None:
    keys = ("day", "cluster_id", "principal", "client_id", "client_ip", "group_id", "member_id", "group_instance_id")
    found = rows(ledger_root.root, "groups")
    assert_equal(found, (*keys, "topic"), groups.groups(ledger_root.emitted.acts))
    assert {row["topic_source"] for row in found} == {"commit", "connection", "client", "shared_client", None}


def test_lag(ledger_root: Built) -> None:
    acts = ledger_root.emitted.acts
    book = groups.lag(groups.committed_offsets(acts), groups.end_offsets(acts))
    keys = ("day", "minute", "cluster_id", "group_id", "topic", "partition")
    assert_equal(rows(ledger_root.root, "lag"), keys, book)


def test_mirror_check(ledger_root: Built) -> None:
    book = mirror.mirror_check(ledger_root.emitted.acts, ledger_root.emitted.envelopes)
    assert_equal(rows(ledger_root.root, "mirror_check"), ("day", "source_topic"), book)
    orders = book[max(book)[0], "orders"]
    assert (orders["produced_total"], orders["mirrored_total"], orders["missing_records"]) == (10_000, 9_993, 7)


def test_quota_advice(ledger_root: Built) -> None:
    book = advice.quota_advice(ledger_root.emitted.acts, ledger_root.emitted.envelopes)
    keys = ("cluster_id", "scope", "listener", "quota", "broker_id")
    assert_equal(rows(ledger_root.root, "quota_advice"), keys, book)
