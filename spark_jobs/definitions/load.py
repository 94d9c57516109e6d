"""Reads definitions from files and folders: all of them are right, or all mistakes are told at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from spark_jobs.definitions.documents import Document, Mistakes, documents
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.definitions.model import API_VERSION
from spark_jobs.definitions.objectives import OPENSLO, SLI, SLO, Objective
from spark_jobs.definitions.prices import Owners, Prices, Zones
from spark_jobs.definitions.retention import Retention
from spark_jobs.definitions.validation_messages import path_of, said, shown
from spark_jobs.errors import JobError

M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")

KINDS = dict.fromkeys(("Mirror", "Retention", "Prices", "Owners", "Zones"), API_VERSION) | {
    "SLI": OPENSLO,
    "SLO": OPENSLO,
}
"""``apiVersion`` of each kind of document."""


@dataclass(frozen=True)
class Definitions:
    """Everything that was declared."""

    mirrors: tuple[Mirror, ...] = ()
    retention: Mapping[str, timedelta] = field(default_factory=dict)
    """Lengths of time by table, where they are not the default."""
    objectives: tuple[Objective, ...] = ()
    """Those of all SLOs."""
    prices: tuple[Prices, ...] = ()
    owners: Owners = field(default_factory=Owners)
    zones: Zones = field(default_factory=Zones)


def load(paths: Sequence[Path | str]) -> Definitions:
    """Return what the documents in ``paths``, files or folders, declare.

    Raises JobError naming every mistake, in the order of the documents. What takes several fields to see (two prices
    of one day, say) is seen once each of them is right.
    """
    mistakes = Mistakes()
    by_kind: dict[str, list[Document]] = {kind: [] for kind in KINDS}
    for document in documents(paths, mistakes):
        kind = document.content.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            mistakes.of(document, ("kind",), f"{shown(kind)} is none of {', '.join(KINDS)}")
        elif document.content.get("apiVersion") != KINDS[kind]:
            mistakes.of(document, ("apiVersion",), f"must be {KINDS[kind]}")
        else:
            by_kind[kind].append(document)
    named = {sli.name for sli in by_kind["SLI"]}
    slis = {sli.name: sli for sli in _named(by_kind["SLI"], SLI, mistakes)}
    slos = _named(by_kind["SLO"], SLO, mistakes, lambda slo: _with_indicator(slo, slis, named, mistakes))
    made = Definitions(
        objectives=tuple(objective for slo in slos for objective in slo.judged),
        mirrors=tuple(_named(by_kind["Mirror"], Mirror, mistakes)),
        retention=_only_one(by_kind["Retention"], Retention, lambda one: one.tables, {}, mistakes),
        prices=tuple(_named(by_kind["Prices"], Prices, mistakes)),
        owners=_only_one(by_kind["Owners"], Owners, lambda one: one, Owners(), mistakes),
        zones=_only_one(by_kind["Zones"], Zones, lambda one: one, Zones(), mistakes),
    )
    if str(mistakes):
        raise JobError(str(mistakes))
    return made


def fingerprint(*parts: object) -> str:
    """Return a short text that changes when one of these definitions does."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _spec(document: Document) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = document.content["spec"]
    return spec


def _with_indicator(
    slo: Document, slis: Mapping[str, SLI], named: Collection[str], mistakes: Mistakes
) -> Mapping[str, Any]:
    """Return the spec of ``slo`` with the indicator that it refers to; without one if there is none."""
    spec = dict(_spec(slo))
    if "indicatorRef" not in spec:
        return spec
    name, reference = spec.pop("indicatorRef"), ("spec", "indicatorRef")
    if "indicator" in spec:
        mistakes.of(slo, reference, f"{shown(name)}: there is an indicator, too; only one of them is allowed")
    elif isinstance(name, str) and name in slis:
        spec["indicator"] = {"spec": slis[name]}
    elif not isinstance(name, str) or name not in named:  # else what is wrong with the SLI is told at its own place
        there = ", ".join(sorted(named)) or "none"
        mistakes.of(slo, reference, f"{shown(name)}: there is no SLI of this name; there is: {there}")
    return spec


def _named(
    found: Sequence[Document],
    model: type[M],
    mistakes: Mistakes,
    spec: Callable[[Document], Mapping[str, Any]] = _spec,
) -> Iterator[M]:
    """Give what each of the documents ``found`` declares; each needs a name of its own."""
    seen: dict[str, str] = {}
    for document in found:
        if not document.name:
            mistakes.of(document, ("metadata", "name"), "is missing")
        elif document.name in seen:
            mistakes.of(document, ("metadata", "name"), f"{document.name} is also that of {seen[document.name]}")
        else:
            seen[document.name] = document.where
        yield from _made(document, model, mistakes, spec, {"name": document.name})


def _only_one(found: Sequence[Document], model: type[M], take: Callable[[M], V], default: V, mistakes: Mistakes) -> V:
    """Return what is taken of the only one of the documents ``found``, ``default`` if there is none."""
    for document in found[1:]:
        mistakes.of(document, ("kind",), f"there is one already, {found[0].where}")
    taken = [take(made) for document in found for made in _made(document, model, mistakes, _spec, {})]
    return taken[0] if taken else default


def _made(
    document: Document,
    model: type[M],
    mistakes: Mistakes,
    spec: Callable[[Document], Mapping[str, Any]],
    more: Mapping[str, Any],
) -> Iterator[M]:
    for name in document.content:
        if name not in ("apiVersion", "kind", "metadata", "spec"):
            mistakes.of(document, (name,), "is unknown")
    given = document.content.get("spec")
    if not isinstance(given, dict):
        mistakes.of(document, ("spec",), "must be an object" if "spec" in document.content else "is missing")
        return
    strange = [name for name in given if not isinstance(name, str) or name == "name"]
    for name in strange:
        mistakes.of(document, ("spec", name), "is unknown")
    try:
        yield model(**{name: value for name, value in spec(document).items() if name not in strange}, **more)
    except ValidationError as error:
        for each in error.errors():
            if each["loc"] == ("indicator",) and "indicatorRef" in given:
                continue  # what is wrong with the reference is told
            for line in said(each, model):
                mistakes.of(document, path_of(each), line)
