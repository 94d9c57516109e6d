"""Rules for Prometheus. Where there is a promtool, they are also run over scripted series."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from observers.event import ROLLUP_BUCKETS
from proxy.telemetry.request_metrics import BUCKET_ENDS
from spark_jobs.definitions import load
from spark_jobs.export.prometheus import prometheus_rules, unsupported_objectives

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
