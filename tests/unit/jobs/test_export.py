"""Costs and changes in the formats of others: FOCUS, OpenCost, OCSF; and objectives as rules for Prometheus."""

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from observers.event import ROLLUP_BUCKETS
from proxy.telemetry.request_metrics import BUCKET_ENDS
from spark_jobs.definitions import load
from spark_jobs.errors import QueryError
from spark_jobs.export import focus, ocsf, opencost
from spark_jobs.export.prometheus import prometheus_rules, unsupported_objectives
from tests.spark.stored import write
from tests.unit.jobs.test_cost import DAY, NEXT, at, bill, data, price


def row(day: date = DAY, **given: Any) -> dict[str, Any]:
    (made,) = bill(price("data_in_gb", "0.05"), traffic=[data(1_500_000_000, day=day, minute=at(day, 12))])
    return {**made, "x_Team": "shop", "Tags": {"b": "2", "a": 'q"1'}, **given}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    strange = 'a,"b"\nc'
    write(tmp_path, "cost", row(), row(NEXT, x_ClientId=strange, Tags=None, BilledCost=Decimal("0.0000000001")))
    return tmp_path


def exported(root: Path, *limits: date | None) -> list[dict[str, str]]:
    out = io.StringIO(newline="")
    count = focus.write_focus_csv(root, out, *limits)
    rows = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    assert len(rows) == count
    return rows


@pytest.mark.promise(
    "cost.md", "`export focus` writes instants in UTC with a Z, plain numbers, tags as JSON, and NULL as empty."
)
def test_values_are_as_focus_writes_them(root: Path) -> None:
    first, second = exported(root)
    assert {name: value for name, value in first.items() if value} == {
        **{name: str(value) for name, value in row().items() if isinstance(value, str)},
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), "0.075"),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), "0.05"), "PricingQuantity": "1.5",
        "ConsumedQuantity": "1500000000", "BillingPeriodStart": "2026-09-01T00:00:00Z",
        "BillingPeriodEnd": "2026-10-01T00:00:00Z", "ChargePeriodStart": "2026-09-22T00:00:00Z",
        "ChargePeriodEnd": "2026-09-23T00:00:00Z", "Tags": '{"a":"q\\"1","b":"2"}',
    }  # fmt: skip
    assert (second["x_ClientId"], second["Tags"], second["BilledCost"]) == ('a,"b"\nc', "", "0.0000000001")


@pytest.mark.promise(
    "cost.md", "A text in a column of ours that a spreadsheet would take for a formula has an apostrophe before it."
)
def test_no_text_of_ours_is_a_formula_and_those_of_focus_are_as_they_are(tmp_path: Path) -> None:
    client = "=cmd|' /C calc'!A0"
    write(tmp_path, "cost", row(x_ClientId=client, x_PrincipalId="@a", x_Topic="a\r=1", ResourceName="-x"))
    (only,) = exported(tmp_path)
    assert [only[name] for name in ("x_ClientId", "x_PrincipalId", "x_Topic")] == [f"'{client}", "'@a", "a\r=1"]
    assert only["ResourceName"] == "-x"


@pytest.mark.promise(
    "cost.md", "`export opencost` writes one response for each day and currency, with team, topic and client as labels."
)
def test_opencost_gets_a_response_for_each_day_and_currency(root: Path) -> None:
    write(root, "cost", row(BillingCurrency="USD", BilledCost=Decimal("2"), Tags={"team": "of the tag"}))
    responses = json.loads(opencost.opencost_json(root))
    assert [(each["start"], each["end"], each["currency"], len(each["costs"])) for each in responses] == [
        ("2026-09-22T00:00:00Z", "2026-09-23T00:00:00Z", "EUR", 1),
        ("2026-09-22T00:00:00Z", "2026-09-23T00:00:00Z", "USD", 1),
        ("2026-09-23T00:00:00Z", "2026-09-24T00:00:00Z", "EUR", 1),
    ]
    (first,), (dollars,), _ = (each["costs"] for each in responses)
    assert (first["billedCost"], first["usageQuantity"], first["usageUnit"]) == (0.075, 1.5, "GB")
    assert first["labels"] == {
        "a": 'q"1', "b": "2", "kafka_cluster": "c1", "kafka_topic": "orders", "kafka_principal": "User:a",
        "kafka_client_id": "app", "kafka_direction": "in", "team": "shop",
    }  # fmt: skip
    assert dollars["labels"]["team"] == "shop"
    assert "zone" not in first
    assert first["extendedAttributes"]["skuPriceId"] == "data_in_gb@2026-01-01"


@pytest.mark.promise("cost.md", "The id of a cost in OpenCost stays when its day is computed again.")
def test_ids_of_costs_are_their_own_and_stay(root: Path) -> None:
    ids = [cost["id"] for each in opencost.cost_responses(root) for cost in each["costs"]]
    assert len(set(ids)) == 2
    assert ids == [cost["id"] for each in opencost.cost_responses(root) for cost in each["costs"]]


@pytest.mark.promise("queries.md", "Exports keep every digit of an amount.")
def test_no_digit_of_money_is_lost(tmp_path: Path) -> None:
    write(tmp_path, "cost", row(BilledCost=Decimal("12345678901234567890.0123456789")))
    assert '"billedCost": 12345678901234567890.0123456789' in opencost.opencost_json(tmp_path)
    assert exported(tmp_path)[0]["BilledCost"] == "12345678901234567890.0123456789"


AT = datetime(2026, 9, 22, 12, 0, 1, tzinfo=UTC)
ROW = {
    "day": date(2026, 9, 22), "minute": AT, "cluster_id": "c", "broker_id": 1, "listener": "CLIENT",
    "principal": "User:eve", "client_id": "app", "client_ip": "10.0.0.7", "api": "CreateTopics",
    "operation": "Create", "resource_type": "topic", "resource_name": "orders", "parent_type": None,
    "parent_name": None, "op_type": None, "mechanism": None, "acl_permission_type": None, "acl_operation": None,
    "acl_host": None, "acl_pattern_type": None, "result": "success", "error_code": 0, "error": None,
    "validate_only": False, "requests": 3, "resources_not_listed": 0, "first_at": AT, "last_at": AT,
    "connection_id": "c1",
}  # fmt: skip

REQUIRED = {
    "activity_id", "actor", "api", "category_uid", "class_uid", "metadata", "severity_id", "src_endpoint", "time",
    "type_uid",
}  # fmt: skip
"""Attributes that https://schema.ocsf.io/1.3.0/classes/api_activity requires."""


def events(root: Path, *days: date | None) -> list[dict[str, Any]]:
    out = io.StringIO()
    count = ocsf.write_ocsf(root, out, *(days or (None, None)))
    made = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(made) == count
    return made


@pytest.mark.promise("queries.md", "`export ocsf` writes each row of `changes` as an event of the class API Activity.")
def test_a_row_is_an_event(tmp_path: Path) -> None:
    write(tmp_path, "changes", ROW)
    (event,) = events(tmp_path)
    assert event.keys() >= REQUIRED
    assert (event["class_uid"], event["type_uid"], event["activity_name"]) == (6003, 600301, "Create")
    assert (event["status"], event["count"], event["time"]) == ("Success", 3, 1790078401000)
    assert event["actor"] == {"user": {"name": "eve", "type": "User"}}
    assert event["api"] == {"operation": "CreateTopics", "service": {"name": "kafka"}}
    assert event["src_endpoint"] == {"ip": "10.0.0.7", "name": "app"}
    assert event["resources"] == [{"type": "topic", "name": "orders"}]
    assert event["metadata"]["version"] == "1.3.0"


WHAT = {
    "denied read": ({"api": "Fetch", "operation": None, "result": "denied", "error": "TOPIC_AUTHORIZATION_FAILED"},
                    (600302, "Failure", "Low", "TOPIC_AUTHORIZATION_FAILED")),
    "denied write": ({"api": "Produce", "operation": None, "result": "denied", "error": "X"},
                     (600303, "Failure", "Low", "X")),
    "failed": ({"operation": "Delete", "result": "failed", "error_code": 36, "error": "TOPIC_ALREADY_EXISTS"},
               (600304, "Failure", "Informational", "TOPIC_ALREADY_EXISTS")),
    "a code of the future": ({"operation": "Alter", "result": "failed", "error_code": 999},
                             (600303, "Failure", "Informational", "999")),
    "no answer": ({"operation": "AlterConfigs", "result": "unknown", "error_code": -1, "error": "UNKNOWN_SERVER_ERROR"},
                  (600303, "Unknown", "Informational", "UNKNOWN_SERVER_ERROR")),
    "another operation": ({"operation": "ClusterAction"}, (600399, "Success", "Informational", None)),
}  # fmt: skip


def test_an_event_says_what_happened_to_what(tmp_path: Path) -> None:
    for number, (case, (changed, expected)) in enumerate(WHAT.items()):
        write(tmp_path / str(number), "changes", ROW | changed)
        (event,) = events(tmp_path / str(number))
        assert (event["type_uid"], event["status"], event["severity"], event.get("status_code")) == expected, case
        assert event["unmapped"]["validate_only"] is False, case
    acl = {"acl_permission_type": "ALLOW", "acl_operation": "Read", "acl_host": "*", "acl_pattern_type": "LITERAL"}
    for kind, name, more in (("config", "retention.ms", {}), ("user", "User:eve", acl)):
        of = {"resource_type": kind, "resource_name": name, "parent_type": "topic", "parent_name": "orders"}
        write(tmp_path / kind, "changes", ROW | of | more)
        (event,) = events(tmp_path / kind)
        expected_resource = {"type": kind, "name": name} | ({"data": more} if more else {})
        assert event["resources"] == [expected_resource, {"type": "topic", "name": "orders"}]


def test_days_are_chosen_and_what_is_missing_is_said(root: Path) -> None:
    write(root, "changes", ROW, ROW | {"day": NEXT})
    exports: tuple[Callable[..., list[Any]], ...] = (exported, events)
    for made in exports:
        assert [len(made(root, *days)) for days in ((NEXT, None), (None, DAY), (date(2026, 9, 24), None))] == [1, 1, 0]
        with pytest.raises(QueryError, match="the last day, 2026-09-22, is before the first one, 2026-09-23"):
            made(root, NEXT, DAY)
    write(root / "others", "traffic", {"day": DAY})
    with pytest.raises(QueryError, match=r"there is no table cost: .* of kind Prices"):
        exported(root / "others")
    with pytest.raises(QueryError, match="changes"):
        events(root / "others")


EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "definitions" / "slo.yaml"
METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"

ID = {"sloth_id": "shop-up-1", "sloth_service": "shop", "sloth_slo": "up-1"}
RATIOS = [f"slo:sli_error:ratio_rate{window}" for window in ("5m", "30m", "1h", "2h", "6h", "1d", "3d", "30d")]
META = [
    "slo:objective:ratio", "slo:error_budget:ratio", "slo:time_period:days", "slo:current_burn_rate:ratio",
    "slo:period_burn_rate:ratio", "slo:period_error_budget_remaining:ratio", "sloth_slo_info",
]  # fmt: skip


def slo(result: str = "answered", selection: str = "apis: [Metadata], by: [api]", more: str = "") -> str:
    method = "Timeslices" if more else "Occurrences"
    good = f"good: {{metricSource: {{type: brokerside, spec: {{result: {result}}}}}}}"
    total = f"total: {{metricSource: {{type: brokerside, spec: {{{selection}}}}}}}"
    return (
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: up}\nspec:\n  service: shop\n"
        f"  indicator: {{spec: {{ratioMetric: {{{good}, {total}}}}}}}\n"
        f"  timeWindow: [{{duration: 30d, isRolling: true}}]\n  budgetingMethod: {method}\n"
        f"  objectives: [{{target: 0.99{more}}}]\n"
    )


LATENCY = """
apiVersion: openslo/v1
kind: SLO
metadata: {name: fast}
spec:
  service: shop
  indicator: {spec: {thresholdMetric: {metricSource: {type: brokerside, spec: {}}}}}
  timeWindow: [{duration: 30d, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{op: lte, value: 50, target: 0.99}]
"""


@pytest.fixture
def made(tmp_path: Path) -> Any:

    def make(*args: str, **kwargs: str) -> tuple[dict[str, Any], list[str]]:
        file = tmp_path / "slo.yaml"
        file.write_text(slo(*args, **kwargs))
        definitions = load([file])
        return yaml.safe_load(prometheus_rules(definitions)), unsupported_objectives(definitions)

    return make


@pytest.mark.promise(
    "slo.md", "`export prometheus` writes recording rules and alerts with the names and labels of Sloth."
)
def test_each_objective_has_the_rules_and_labels_of_sloth(made: Any) -> None:
    file, missing = made()
    assert missing == []
    ratios, meta, alerts = [group["rules"] for group in file["groups"]]
    assert [rule["record"] for rule in ratios] == RATIOS
    assert [rule["record"] for rule in meta] == META
    for rule in ratios:
        assert rule["labels"] == {**ID, "sloth_window": rule["record"].removeprefix("slo:sli_error:ratio_rate")}
    assert all(rule["labels"].items() >= ID.items() for rule in meta)
    assert [rule["labels"]["sloth_severity"] for rule in alerts] == ["page", "ticket"]
    budget = "0.01"
    assert f"> (14.4 * {budget})" in alerts[0]["expr"]
    assert f"> (1 * {budget})" in alerts[1]["expr"]
    enough = 'on (api) sum by (api) (increase(brokerside_requests_total{api=~"Metadata"}[6h])) >= 100)'
    assert enough in alerts[0]["expr"], "fewer requests are not judged"


def test_metrics_that_are_asked_for_exist() -> None:
    known = set(re.findall(r"^\| `(\w+)`", METRICS.read_text(), re.MULTILINE))
    asked = set(re.findall(r"\bbrokerside_\w+", prometheus_rules(load([EXAMPLE]))))
    assert asked
    assert asked <= known


@pytest.mark.promise(
    "slo.md", "Rules for Prometheus count errors and durations as the table `slo` does, to the same bucket end."
)
def test_errors_and_durations_are_those_of_the_tables(made: Any, tmp_path: Path) -> None:
    file, missing = made(result="success", selection="apis: [Produce], listeners: [C]")
    assert missing == []
    expr = file["groups"][0]["rules"][0]["expr"]
    assert 'brokerside_request_errors_total{class="failure", api=~"Produce", listener=~"C"}[5m]' in expr
    assert "requests_total" not in expr  # with acks=0 there is no response by design
    lost = made(result="success")[0]["groups"][0]["rules"][0]["expr"]
    assert "brokerside_requests_total" in lost
    (tmp_path / "slo.yaml").write_text(LATENCY)
    (objective,) = load([tmp_path / "slo.yaml"]).objectives
    text = prometheus_rules(load([tmp_path / "slo.yaml"]))
    end = ROLLUP_BUCKETS[objective.good_buckets - 1]
    assert BUCKET_ENDS[objective.good_buckets - 1] == f"{end / 1e6:.6g}"
    assert f'service_duration_seconds_bucket{{le="{end / 1e6:.6g}"}}[5m]' in text


@pytest.mark.promise("slo.md", "Objectives that metrics cannot express are left out of the rules, and named.")
def test_what_metrics_cannot_report_is_left_out_and_said(made: Any) -> None:
    for kwargs, why in (
        ({"result": "success", "selection": "apis: [Fetch], topics: [a.*]"}, "topics"),
        ({"selection": "apis: [Metadata], by: [principal]"}, "principals"),
        ({"selection": "apis: [Metadata], clientIds: [a.*]"}, "client ids"),
        ({"selection": "apis: [Metadata], clusters: [one]"}, "clusters"),
        ({"selection": "apis: [Produce, Metadata]"}, "named apis"),
        ({"selection": "by: [api]"}, "named apis"),
        ({"more": ", timeSliceTarget: 0.9, timeSliceWindow: 5m"}, "slices"),
    ):
        file, (missing,) = made(**kwargs)
        assert file == {"groups": []}, kwargs
        assert missing.startswith("up, 1: "), kwargs
        assert why in missing


def test_what_is_left_out_is_a_comment_of_one_line_whatever_its_name(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(slo(selection="by: [principal]").replace("{target", '{displayName: "a\\ngroups: 1", target'))
    text = prometheus_rules(load([file]))
    assert "\n# Not included: up, a groups: 1: " in text
    assert yaml.safe_load(text) == {"groups": []}
