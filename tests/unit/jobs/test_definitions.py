"""Definitions are valid as a whole, or all errors are reported with place, value and what is allowed."""

import re
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.core.apis import APIS, api_name
from proxy.protocol.private import PRIVATE, PUSHED
from spark_jobs import kafka_versions
from spark_jobs.definitions import Definitions, load
from spark_jobs.definitions.load import DOCUMENT_KINDS
from spark_jobs.definitions.prices import Price
from spark_jobs.errors import JobError

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = sorted((Path(__file__).parents[3] / "deploy" / "examples" / "definitions").glob("*.yaml"))

SOURCE = {"metricSource": {"type": "brokerside", "spec": {"apis": ["Produce"]}}}
GOOD = {"metricSource": {"type": "brokerside", "spec": {"result": "success"}}}
LATENCY = {"spec": {"thresholdMetric": SOURCE}}
ERRORS = {"spec": {"ratioMetric": {"good": GOOD, "total": SOURCE}}}
IN_TIME = {"op": "lte", "value": 100, "target": 0.99}

LENGTH = "must be a duration such as 90s, 5m, 1h, 30d or 4w"

SPECS: dict[str, dict[str, Any]] = {
    "Mirror": {"sourceClusterId": "a", "targetClusterId": "b"},
    "Retention": {"tables": {"traffic": "30d"}},
    "Prices": {
        "currency": "EUR", "account": {"id": "1"}, "provider": "us",
        "prices": [{"name": "in", "dimension": "data_in_gb", "price": "0.1", "validFrom": "2026-01-01"}],
    },
    "Owners": {"rules": [{"team": "shop", "topics": ["orders"]}]},
    "Zones": {"clients": {"10.0.0.0/8": "z1"}, "brokers": {"a": {1: "z1"}}},
    "SLI": {"thresholdMetric": SOURCE},
    "SLO": {
        "service": "shop", "indicator": LATENCY, "timeWindow": [{"duration": "30d", "isRolling": True}],
        "budgetingMethod": "Occurrences", "objectives": [IN_TIME],
    },
}  # fmt: skip


def document(kind: str, name: str = "x", **changes: Any) -> dict[str, Any]:
    """A document of ``kind`` with changes to its spec; ``...`` leaves a field out."""
    spec = {key: value for key, value in {**SPECS[kind], **changes}.items() if value is not ...}
    return {"apiVersion": DOCUMENT_KINDS[kind], "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "all.yaml"


def loaded(file: Path, *documents: Any) -> Definitions:
    file.write_text(yaml.safe_dump_all(documents))
    return load([file])


def mistakes(file: Path, *documents: Any) -> list[str]:
    with pytest.raises(JobError) as error:
        loaded(file, *documents)
    form = re.compile(rf"{re.escape(str(file))}: (.*) at line \d+, column \d+")
    return [form.fullmatch(line)[1] for line in str(error.value).split("\n")]


@pytest.mark.promise("concepts.md", "Definitions declare objectives, prices, owners, zones, mirrors and retention.")
def test_the_smallest_of_each_kind_is_read(file: Path) -> None:
    assert set(SPECS) == set(DOCUMENT_KINDS)
    made = loaded(file, *[document(kind) for kind in DOCUMENT_KINDS])
    assert [mirror.name for mirror in made.mirrors] == ["x"]
    assert made.retention == {"traffic": timedelta(days=30)}
    assert [prices.name for prices in made.prices] == ["x"]
    assert [rule.team for rule in made.owners.rules] == ["shop"]
    assert made.zones.brokers == {"a": {1: "z1"}}
    assert [objective.slo for objective in made.objectives] == ["x"]
    assert load([]) == Definitions()


def test_the_examples_and_the_documents_of_the_pages_are_right(file: Path) -> None:
    for example in EXAMPLES:
        assert load([example]) != Definitions(), example
    kinds = {document["kind"] for example in EXAMPLES for document in yaml.safe_load_all(example.read_text())}
    assert kinds == set(DOCUMENT_KINDS)
    for page in ("slo.md", "jobs.md"):
        found = re.findall(r"```yaml\n(apiVersion: .+?)```", (DOCS / page).read_text(), re.DOTALL)
        assert found, page
        for text in found:
            file.write_text(text)
            assert load([file]) != Definitions(), text
    page = (DOCS / "cost.md").read_text()
    shown = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert shown == [(EXAMPLES[0].parent / f"{name}.yaml").read_text() for name in ("prices", "owners", "zones")]


@pytest.mark.promise("jobs.md", "Definitions of a folder are all YAML files in it and in its subfolders.")
def test_a_folder_is_the_yaml_files_below_it_each_once(tmp_path: Path) -> None:
    for name, mirror in {"a.yaml": "one", "b.yml": "two", "c.txt": "three"}.items():
        (tmp_path / name).write_text(yaml.safe_dump(document("Mirror", mirror)))
    assert [mirror.name for mirror in load([tmp_path]).mirrors] == ["one", "two"]
    mounted = tmp_path / "..2026_11_22"
    for folder in (tmp_path / "teams" / "shop", mounted):
        folder.mkdir(parents=True)
        (folder / "mirror.yaml").write_text(yaml.safe_dump(document("Mirror", folder.name)))
    (tmp_path / "linked.yaml").symlink_to(mounted / "mirror.yaml")
    (tmp_path / "teams" / "loop").symlink_to(tmp_path)
    assert sorted(mirror.name for mirror in load([tmp_path]).mirrors) == ["..2026_11_22", "one", "shop", "two"]


def test_a_key_that_is_there_twice_is_reported_with_its_lines(file: Path) -> None:
    text = yaml.safe_dump(document("Retention")).replace("traffic: 30d", "traffic: 30d\n    traffic: 40d")
    file.write_text(text + "spec: {tables: {slo: soon}}\n")
    with pytest.raises(JobError) as error:
        load([file])
    assert str(error.value).splitlines() == [
        f"{file}: line 8: traffic: is a duplicate of line 7",
        f"{file}: line 9: spec: is a duplicate of line 5",
        f"{file}: document 1: spec.tables.slo: 'soon': {LENGTH} at line 9, column 17",
    ]


@pytest.mark.promise(
    "jobs.md", "`jobs check` reports all errors of all definitions at once, in the order of the documents."
)
def test_mistakes_are_reported_in_the_order_of_the_documents_and_none_hides_another(file: Path) -> None:
    said = mistakes(
        file,
        document("SLO", "a", indicator=..., indicatorRef="x", service="", method="x", objectives=objective(op="gt")),
        {"kind": "Planet"},
        document("Retention", tables={"planets": "3d", "slo": "36h", "cost": "soon"}),
        document("Mirror", lag="soon"),
        {**document("Mirror", topics="("), "metadata": {}, "status": 1},
        document("SLI", "b", thresholdMetric={"metricSource": {"type": "brokerside", "spec": {"apis": ["Produc"]}}}),
        document("SLO", "c", indicator=..., indicatorRef="b", service=5),
        document("Prices", prices=5),
    )
    places = [re.match(r"document (\d): (?:spec\.)?([A-Za-z.0-9]+)", line) for line in said]
    assert [place and place.groups() for place in places] == [
        ("1", "indicatorRef"), ("1", "service"), ("1", "objectives.0.op"), ("1", "method"), ("2", "kind"),
        ("3", "tables.cost"), ("3", "tables.planets"), ("3", "tables.slo"), ("4", "lag"),
        ("5", "metadata.name"), ("5", "status"), ("5", "topics"), ("6", "thresholdMetric.metricSource.spec.apis.0"),
        ("7", "service"), ("8", "prices"),
    ]  # fmt: skip
    assert not [line for line in said if re.search(r"Input|tuple|valid |\[key\]|datetime|Extra|permitted|None", line)]


@pytest.mark.promise("slo.md", "Objectives may select every api that sidecars report, by its name or by its number.")
def test_apis_are_those_that_the_sidecars_report(file: Path) -> None:
    assert list(kafka_versions.APIS) == [api_name(key) for key in sorted(APIS)]
    assert list(kafka_versions.SIDECAR_APIS) == [api.name for key, api in PRIVATE.items() if key not in PUSHED]
    newer = [*kafka_versions.APIS, *kafka_versions.SIDECAR_APIS, f"ApiKey({len(APIS)})"]
    (made,) = loaded(file, document("SLO", indicator=selecting(apis=newer))).objectives
    assert list(made.selection.apis) == newer


@pytest.mark.promise("jobs.md", "An error in a definition names file, document, field, value and what is allowed.")
def test_a_mistake_is_reported_at_its_field_or_at_the_nearest_one_above_it(file: Path) -> None:
    file.write_text(
        "apiVersion: brokerside/v1\nkind: Mirror\nmetadata: {name: one}\nspec:\n  targetClusterId: b\n  lag: soon\n"
        "---\napiVersion: brokerside/v1\nkind: Owners\nspec:\n  rules:\n  - {team: shop, topics: [orders, 'a[']}\n"
    )
    with pytest.raises(JobError) as error:
        load([file])
    reported = [re.search(r"document \d: (\S+): .* at (line .*)", line) for line in str(error.value).splitlines()]
    assert [line and line.groups() for line in reported] == [
        ("spec.sourceClusterId", "line 4, column 1"),
        ("spec.lag", "line 6, column 3"),
        ("spec.rules.0.topics.1", "line 12, column 35"),
    ]


def test_what_all_kinds_have_in_common_is_checked(file: Path) -> None:
    for kind in DOCUMENT_KINDS:
        right = document(kind)
        version = f"document 1: apiVersion: must be {DOCUMENT_KINDS[kind]}"
        assert mistakes(file, {**right, "apiVersion": "v0"}) == [version]
        assert mistakes(file, {**right, "status": {}}) == ["document 1: status: is unknown"], kind
        assert mistakes(file, {**right, "spec": 5}) == ["document 1: spec: must be an object"], kind
        (said,) = mistakes(file, document(kind, planet="Mars"))
        assert said.startswith("document 1: spec.planet: 'Mars': "), kind
        if kind in ("Mirror", "Prices", "SLI", "SLO"):
            assert mistakes(file, {**right, "metadata": {}}) == ["document 1: metadata.name: is missing"], kind
            second = f"document 2: metadata.name: x is also the name of {file}: document 1"
        else:
            only = "only one document of this kind is allowed; the first is"
            second = f"document 2: kind: {only} {file}: document 1"
        assert mistakes(file, right, right) == [second]


def objective(**changes: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in {**IN_TIME, **changes}.items() if value is not ...}]


def selecting(**spec: Any) -> dict[str, Any]:
    return {"spec": {"thresholdMetric": {"metricSource": {"type": "brokerside", "spec": spec}}}}


SLICES = {"timeSliceTarget": 0.9, "timeSliceWindow": "5m"}

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "retention of no table": ("Retention", {"tables": {"planets": "3d"}}, "there is no table planets"),
    "a field that there is not": (
        "SLO", {"indicatorref": "y"}, "is unknown; the fields are: description, service, indicator or indicatorRef, "),
    "a pattern that Java reads otherwise": ("Mirror", {"topics": "(?P<a>b)"}, "must be a regular expression"),
    "an indicator of both": (
        "SLO", {"indicator": {"spec": {**LATENCY["spec"], **ERRORS["spec"]}}}, "either thresholdMetric or ratioMetric"),
    "another source": (
        "SLI", {"thresholdMetric": {"metricSource": {"type": "Prometheus"}}}, "type: 'Prometheus': must be 'brok"),
    "no api of Kafka's": ("SLO", {"indicator": selecting(apis=["produce"])}, "spec.apis.0: 'produce': must be"),
    "answers of topics": (
        "SLI", {"thresholdMetric": ..., "ratioMetric": {
            "good": {"metricSource": {"type": "brokerside", "spec": {"result": "answered"}}},
            "total": {"metricSource": {"type": "brokerside", "spec": {"by": ["topic"]}}}}},
        "cannot be judged by topic"),
    "bad requests counted": (
        "SLI", {"thresholdMetric": ..., "ratioMetric": {"good": GOOD, "bad": GOOD, "total": SOURCE}}, "Metric.bad: "),
    "a calendar": (
        "SLO", {"timeWindow": [{"duration": "1M", "calendar": {"startTime": "2026-01-01 00:00:00"}}]},
        "use a rolling window"),
    "a period that does not roll": ("SLO", {"timeWindow": [{"duration": "30d", "isRolling": False}]}, "a rolling"),
    "a period of hours": ("SLO", {"timeWindow": [{"duration": "36h"}]}, "must be whole days, 1d to 366d"),
    "ratios of slices": ("SLO", {"budgetingMethod": "RatioTimeslices"}, "'Occurrences' or 'Timeslices'"),
    "policies": ("SLO", {"alertPolicies": ["page"]}, "spec.alertPolicies: are not supported"),
    "no budget": ("SLO", {"objectives": objective(target=1)}, "spec.objectives.0.target: 1: "),
    "no room for good": ("SLO", {"objectives": objective(value=0.05)}, "spec.objectives.0.value: 0.05: "),
    "more is better": ("SLO", {"objectives": objective(op="gte")}, "spec.objectives.0.op: 'gte': "),
    "a latency without a threshold": ("SLO", {"objectives": objective(value=...)}, "1: a thresholdMetric needs op"),
    "a threshold of errors": ("SLO", {"indicator": ERRORS}, "1: op and value are only allowed with a thresholdMetric"),
    "two of a name": ("SLO", {"objectives": objective(displayName="a") * 2}, "displayName a: each objective needs"),
    "slices without a length": ("SLO", {"budgetingMethod": "Timeslices"}, "1: Timeslices need timeSliceTarget and"),
    "slices where there are none": ("SLO", {"objectives": objective(**SLICES)}, "are only allowed with Timeslices"),
    "slices over midnight": (
        "SLO", {"objectives": objective(**SLICES | {"timeSliceWindow": "7m"})},
        "must be whole minutes that divide a day, such as 1m, 5m or 1h"),
}  # fmt: skip


@pytest.mark.promise("slo.md", "What OpenSLO has and the jobs do not read is refused, with the reason.")
def test_what_is_wrong_is_reported_once_and_as_a_line(file: Path) -> None:
    for case, (kind, changes, expected) in WRONG.items():
        (said,) = mistakes(file, document(kind, **changes))
        assert said.startswith("document 1: spec"), case
        assert expected in said, case
        assert len(said) < 300, case


def test_an_indicator_by_reference_is_the_one_written_out(file: Path) -> None:
    by_reference = document("SLO", indicator=..., indicatorRef="errors", objectives=[{"target": 0.9}])
    sli = document("SLI", "errors", thresholdMetric=..., **ERRORS["spec"])
    (referring,) = loaded(file, by_reference, sli).objectives
    (written_out,) = loaded(file, document("SLO", indicator=ERRORS, objectives=[{"target": 0.9}])).objectives
    assert referring == written_out


@pytest.mark.promise(
    "slo.md", "A latency threshold is counted at the end of a bucket: exactly there, or at the next one below."
)
def test_a_threshold_is_counted_at_the_end_of_a_bucket_below_it(file: Path) -> None:
    for value, counted_to in (
        (0.064, 0.064), (0.09, 0.09), (0.0899, 0.064), (100, 92.681), (92.681, 92.681), (10**9, 33_554.432),
    ):  # fmt: skip
        (made,) = loaded(file, document("SLO", objectives=objective(value=value))).objectives
        assert made.counted_to_ms == counted_to, value
    between, exact = loaded(
        file, document("SLO", objectives=[*objective(displayName="a"), *objective(displayName="b", value=92.681)])
    ).objectives
    assert between.describe() == [
        "x, a: 99 % of requests in time in 30 days; counted to 92.681 ms, not 100 ms: exact are 92.681 and 131.072"
    ]
    assert exact.describe() == ["x, b: 99 % of requests in time in 30 days; counted to 92.681 ms"]


@pytest.mark.promise("slo.md", "Alerts are about the same share of the budget, whatever the period of an objective.")
def test_alerts_take_the_same_share_of_the_budget_whatever_the_period(file: Path) -> None:
    for days, rates in ((30, [14.4, 6, 3, 1]), (7, [3.36, 1.4, 0.7, 7 / 30])):
        (made,) = loaded(file, document("SLO", timeWindow=[{"duration": f"{days}d"}])).objectives
        assert list(made.alert_burn_rates.values()) == pytest.approx(rates), days


PRICE = SPECS["Prices"]["prices"][0]


def priced(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"prices": [{**PRICE, **each} for each in changes]}


AMOUNT = "must be an amount from 0 to below 1,000,000,000,000 with at most 10 decimals"
OVERLAP = "only one price may be valid on one day for the same selection"
DAY = "must be a day such as 2026-01-31"
SPLIT = "is charged to the client that caused it; split is allowed for cluster_hours, fixed_daily, fixed_monthly"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"currency": "EURO"}, "spec.currency: 'EURO': must be a currency code of ISO 4217 such as EUR"),
    ({"prices": []}, "spec.prices: must have at least one price"),
    *(
        (priced({"price": amount}), f"spec.prices.0.price: {amount!r}: {AMOUNT}")
        for amount in ("-0.01", "0.00000000001", 1e-11, "1000000000000", "much", "NaN")
    ),
    (priced({"price": True}), f"spec.prices.0.price: true: {AMOUNT}"),
    (priced({"validFrom": "soon"}), f"spec.prices.0.validFrom: 'soon': {DAY}"),
    (priced({"validFrom": 20260101}), f"spec.prices.0.validFrom: 20260101: {DAY}"),
    (priced({"validTo": date(2026, 1, 1)}), "spec.prices.0: validTo: 2026-01-01 must be after validFrom, 2026-01-01"),
    (
        priced({"dimension": "requests", "topics": ["orders"]}),
        "spec.prices.0: topics: requests can be limited to clusters, listeners, principals",
    ),
    (priced({"split": {"by": "even"}}), f"spec.prices.0: split: data_in_gb {SPLIT}"),
    (priced({}, {"price": 2}), f"spec.prices: in@2026-01-01: in already has a price from 2026-01-01; {OVERLAP}"),
    (
        priced({"validTo": date(2026, 3, 1), "topics": ["t"]}, {"validFrom": date(2026, 2, 28), "topics": ["t"]}),
        f"spec.prices: in@2026-02-28 [topics=t]: in already has a price from 2026-01-01 to 2026-03-01; {OVERLAP}",
    ),
    (
        priced({}, {"dimension": "data_out_gb", "validFrom": date(2027, 1, 1)}),
        "spec.prices: in: is a price of data_in_gb and of data_out_gb; use one name for each dimension",
    ),
]


@pytest.mark.promise("cost.md", "Prices of which two would be valid at once are refused.")
def test_prices_that_cannot_be_meant_are_refused(file: Path) -> None:
    for spec, said in REFUSED:
        assert mistakes(file, document("Prices", **spec)) == [f"document 1: {said}"]


def test_owners_and_zones_that_cannot_be_meant_are_refused(file: Path) -> None:
    twice = {"clients": {"2001:db8::/32": "a", "2001:0db8::/32": "b"}}
    for kind, spec, said in (
        ("Owners", {"rules": [{"team": "a"}], "tags": {"b": {}}}, "spec: tags: b: no rule names this team"),
        ("Owners", {"rules": [{"team": "a b"}]}, "spec.rules.0.team: 'a b': "),
        ("Owners", {"rules": [{"team": "a", "topics": ["("]}]}, "spec.rules.0.topics.0: '(': must be a regular"),
        ("Zones", {"clients": {"10.0.0.1/8": "a"}}, "spec.clients.10.0.0.1/8: '10.0.0.1/8': must be an address range"),
        ("Zones", twice, "spec.clients: 2001:db8::/32: is the same range as 2001:0db8::/32"),
        ("Zones", {"brokers": {"c": {-1: "a"}}}, "spec.brokers.c.-1: -1: must be at least 0"),
    ):
        (mistake,) = mistakes(file, document(kind, **spec))
        assert mistake.startswith(f"document 1: {said}"), mistake


@pytest.mark.promise("cost.md", "A price is exactly what is written, with up to 10 decimals.")
def test_a_price_is_what_is_written(file: Path) -> None:
    prices = priced({"price": 0.1, "name": "a"}, {"price": "1.0000000000000", "name": "b"}, {"price": 7, "name": "c"})
    (made,) = loaded(file, document("Prices", **prices)).prices
    assert [price.price for price in made.prices] == [Decimal("0.1"), 1, 7]
    for amount in (Decimal(10**12 - 1) + Decimal("0.9999999999"), Decimal("0.0000000001"), Decimal(0)):
        price = Price(name="a", dimension="requests", price=str(amount), valid_from=date(2026, 1, 1))
        assert price.price == amount


@pytest.mark.promise(
    "cost.md", "A price is valid until its `validTo`, or until the next one of the same name and limits begins."
)
def test_a_price_ends_where_it_says_or_where_the_next_begins(file: Path) -> None:
    days = [date(2026, month, 1) for month in (1, 3, 5, 8)]
    prices = priced(
        {"validFrom": days[2], "price": 3, "validTo": date(2026, 6, 1)}, {"validFrom": days[0], "price": 1},
        {"validFrom": days[1], "price": 2}, {"validFrom": days[3], "price": 4},
        {"validFrom": days[0], "price": 5, "topics": ["orders"]},
    )  # fmt: skip
    (made,) = loaded(file, document("Prices", **prices)).prices
    assert {int(price.price): until for price, until in made.periods()} == {
        1: days[1], 2: days[2], 3: date(2026, 6, 1), 4: None, 5: None
    }  # fmt: skip
    assert [(price.name, first, last) for price, first, last in made.gaps()] == [("in", date(2026, 6, 1), days[3])]
