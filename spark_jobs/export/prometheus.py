"""Objectives as rules for Prometheus, over the sidecars' own metrics: those few that metrics can tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.objectives import DAY, OPENSLO, Objective
from spark_jobs.schemas.slo import ALERTS, WINDOWS

REQUESTS, RESPONSES = "brokerside_requests_total", "brokerside_responses_total"

UNTOLD = ("Produce", "Fetch", "ShareFetch")
"""Apis whose requests may go unanswered for good reasons, which metrics do not tell: acks=0, a consumer that leaves."""

Rule = dict[str, Any]

_HEAD = "# Made by `brokerside export prometheus` of the OpenSLO objectives; names and labels are those of Sloth.\n"


def rules(definitions: Definitions) -> str:
    """Return a file of rules for Prometheus (YAML): of each objective its error ratios, its budget and its alerts.

    Objectives that cannot be told are in comments; see ``left_out``.
    """
    groups = [group for each in definitions.objectives if _hindrance(each) is None for group in _groups(each)]
    comments = "".join(f"# Not here: {' '.join(each.split())}\n" for each in left_out(definitions))
    return _HEAD + comments + yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=1_000)


def left_out(definitions: Definitions) -> list[str]:
    """Return a line for each objective of which there are no rules, with the reason."""
    found = [(each, _hindrance(each)) for each in definitions.objectives]
    return [f"{each.slo}, {each.name}: {why}; the table slo has it" for each, why in found if why is not None]


def _hindrance(of: Objective) -> str | None:
    """Return why the metrics cannot tell an objective; None if they can."""
    by = of.selection
    if of.sli == "latency":
        return "metrics have no latencies"
    if of.sli == "errors":
        return "metrics do not tell an answer with an error from others"
    if by.principals or by.client_ids or by.clusters or set(by.by) - {"api"}:
        return "metrics have neither clusters, principals nor client ids"
    if not by.apis or set(by.apis) & set(UNTOLD):
        return f"metrics can tell it only of named apis other than {', '.join(UNTOLD)}"
    if of.slice_target is not None:
        return "metrics do not tell slices"
    return None


def _groups(of: Objective) -> Iterator[Rule]:
    """Give the groups of rules of one objective."""
    name = f"{of.slo}-{of.name}"
    labels = {"sloth_id": f"{of.service}-{name}", "sloth_service": of.service, "sloth_slo": name}
    own = "{" + ", ".join(f"{label}={_quoted(value)}" for label, value in labels.items()) + "}"
    period = f"{of.period // DAY}d"

    def recorded(record: str, expr: str, **more: str) -> Rule:
        return {"record": record, "expr": expr, "labels": labels | more}

    ratios = [recorded(f"slo:sli_error:ratio_rate{w}", _errors(of, w), sloth_window=w) for w in WINDOWS]
    over = f"slo:sli_error:ratio_rate5m{own}[{period}]"
    mean = f"sum_over_time({over}) / ignoring (sloth_window) count_over_time({over})"
    if period not in WINDOWS:
        ratios.append(recorded(f"slo:sli_error:ratio_rate{period}", mean, sloth_window=period))
    budget = f"on (sloth_id, sloth_slo, sloth_service) group_left () slo:error_budget:ratio{own}"
    meta = [
        recorded("slo:objective:ratio", f"vector({of.target:f})"),
        recorded("slo:error_budget:ratio", f"vector({of.budget:f})"),
        recorded("slo:time_period:days", f"vector({of.period // DAY})"),
        recorded("slo:current_burn_rate:ratio", f"slo:sli_error:ratio_rate5m{own} / {budget}"),
        recorded("slo:period_burn_rate:ratio", f"slo:sli_error:ratio_rate{period}{own} / {budget}"),
        recorded("slo:period_error_budget_remaining:ratio", f"1 - slo:period_burn_rate:ratio{own}"),
        recorded("sloth_slo_info", "vector(1)", sloth_objective=f"{of.target * 100:f}", sloth_spec=OPENSLO),
    ]
    yield {"name": f"brokerside-slo-sli-recordings-{name}", "rules": ratios}
    yield {"name": f"brokerside-slo-meta-recordings-{name}", "rules": meta}
    yield {"name": f"brokerside-slo-alerts-{name}", "rules": [_alert(of, own, each) for each in ("page", "ticket")]}


def _errors(of: Objective, window: str) -> str:
    """Return the share of requests that were not answered; nothing where there were none."""
    matched = [f"api=~{_quoted('|'.join(map(re.escape, of.selection.apis)))}"]
    if of.selection.listeners:
        matched.append(f"listener=~{_quoted('|'.join(of.selection.listeners))}")
    summed = "sum by (api)" if "api" in of.selection.by else "sum"
    of_requests, of_responses = (
        f"{summed} (rate({metric}{{{', '.join(matched)}}}[{window}]))" for metric in (REQUESTS, RESPONSES)
    )
    # A series of responses begins with the first one. One that is read a little later than its request is no gain.
    return f"clamp_min(1 - ({of_responses} or {of_requests} * 0) / ({of_requests} > 0), 0)"


def _alert(of: Objective, own: str, severity: str) -> Rule:
    def burns(name: str) -> str:
        short, long, _ = ALERTS[name]
        limit = f"({of.alerts[name]:g} * {of.budget:f})"
        both = (f"max without (sloth_window) (slo:sli_error:ratio_rate{each}{own} > {limit})" for each in (short, long))
        return f"({' and '.join(both)})"

    return {
        "alert": "SLOBudgetBurns",
        "expr": "\nor\n".join(burns(name) for name in ALERTS if name.startswith(severity)),
        "labels": {"sloth_severity": severity},
        "annotations": {
            "summary": f"{of.slo}, {of.name}: the error budget burns too fast",
            "description": "The burn rate is in slo:current_burn_rate:ratio, what is left of the budget in"
            " slo:period_error_budget_remaining:ratio.",
        },
    }


def _quoted(text: str) -> str:
    """Return ``text`` as a string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class _Dumper(yaml.SafeDumper):
    """Writes what has several lines as such, and nothing as a reference to what came before."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
