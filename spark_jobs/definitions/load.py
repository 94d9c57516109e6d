"""Reads definitions from files and folders. It either accepts all of them or reports all errors at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from spark_jobs.definitions.documents import DefinitionDocument, DefinitionErrors, read_documents
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.definitions.model import API_VERSION
from spark_jobs.definitions.objectives import OPENSLO_API_VERSION, SLI, SLO, SloObjective
from spark_jobs.definitions.prices import Owners, Prices, Zones
from spark_jobs.definitions.retention import Retention
from spark_jobs.definitions.validation_messages import error_lines, error_path, format_value
from spark_jobs.errors import JobError

M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")

DOCUMENT_KINDS = dict.fromkeys(("Mirror", "Retention", "Prices", "Owners", "Zones"), API_VERSION) | {
    "SLI": OPENSLO_API_VERSION,
    "SLO": OPENSLO_API_VERSION,
}
"""``apiVersion`` of each kind of document."""


@dataclass(frozen=True)
class Definitions:
    """All definitions."""

    mirrors: tuple[Mirror, ...] = ()
    retention: Mapping[str, timedelta] = field(default_factory=dict)
    """Retention by table, for tables without the default."""
    objectives: tuple[SloObjective, ...] = ()
    """The objectives of all SLOs."""
    prices: tuple[Prices, ...] = ()
    owners: Owners = field(default_factory=Owners)
    zones: Zones = field(default_factory=Zones)


def load(paths: Sequence[Path | str]) -> Definitions:
    """Return the definitions in ``paths``, files or folders.

    Raises JobError with all errors in the order of the documents. Errors that concern several fields, for example two
    prices for one day, are found only if each of the fields is valid.
    """
    errors = DefinitionErrors()
    by_kind: dict[str, list[DefinitionDocument]] = {kind: [] for kind in DOCUMENT_KINDS}
    for document in read_documents(paths, errors):
        kind = document.content.get("kind")
        if not isinstance(kind, str) or kind not in DOCUMENT_KINDS:
            errors.add_for(document, ("kind",), f"{format_value(kind)} is not one of {', '.join(DOCUMENT_KINDS)}")
        elif document.content.get("apiVersion") != DOCUMENT_KINDS[kind]:
            errors.add_for(document, ("apiVersion",), f"must be {DOCUMENT_KINDS[kind]}")
        else:
            by_kind[kind].append(document)
    named = {sli.name for sli in by_kind["SLI"]}
    slis = {sli.name: sli for sli in _validate_named(by_kind["SLI"], SLI, errors)}
    slos = _validate_named(by_kind["SLO"], SLO, errors, lambda slo: _with_indicator(slo, slis, named, errors))
    made = Definitions(
        objectives=tuple(objective for slo in slos for objective in slo.judged_objectives),
        mirrors=tuple(_validate_named(by_kind["Mirror"], Mirror, errors)),
        retention=_validate_single(by_kind["Retention"], Retention, lambda one: one.tables, {}, errors),
        prices=tuple(_validate_named(by_kind["Prices"], Prices, errors)),
        owners=_validate_single(by_kind["Owners"], Owners, lambda one: one, Owners(), errors),
        zones=_validate_single(by_kind["Zones"], Zones, lambda one: one, Zones(), errors),
    )
    if str(errors):
        raise JobError(str(errors))
    return made


def fingerprint(*parts: object) -> str:
    """Return a short text that changes when one of ``parts`` changes."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _document_spec(document: DefinitionDocument) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = document.content["spec"]
    return spec


def _with_indicator(
    slo: DefinitionDocument, slis: Mapping[str, SLI], named: Collection[str], errors: DefinitionErrors
) -> Mapping[str, Any]:
    """Return the spec of ``slo`` with the indicator that it refers to. An unknown reference is an error."""
    spec = dict(_document_spec(slo))
    if "indicatorRef" not in spec:
        return spec
    name, reference = spec.pop("indicatorRef"), ("spec", "indicatorRef")
    if "indicator" in spec:
        errors.add_for(slo, reference, f"{format_value(name)}: indicator is set, too; only one of them is allowed")
    elif isinstance(name, str) and name in slis:
        spec["indicator"] = {"spec": slis[name]}
    elif (
        not isinstance(name, str) or name not in named
    ):  # the errors of an invalid SLI are reported for its own document
        there = ", ".join(sorted(named)) or "none"
        errors.add_for(slo, reference, f"{format_value(name)}: there is no SLI of this name; the SLIs are: {there}")
    return spec


def _validate_named(
    found: Sequence[DefinitionDocument],
    model: type[M],
    errors: DefinitionErrors,
    spec: Callable[[DefinitionDocument], Mapping[str, Any]] = _document_spec,
) -> Iterator[M]:
    """Validate the documents ``found`` and yield their models. Each document needs a unique name."""
    seen: dict[str, str] = {}
    for document in found:
        if not document.name:
            errors.add_for(document, ("metadata", "name"), "is missing")
        elif document.name in seen:
            errors.add_for(document, ("metadata", "name"), f"{document.name} is also the name of {seen[document.name]}")
        else:
            seen[document.name] = document.where
        yield from _validate(document, model, errors, spec, {"name": document.name})


def _validate_single(
    found: Sequence[DefinitionDocument], model: type[M], take: Callable[[M], V], default: V, errors: DefinitionErrors
) -> V:
    """Return ``take`` of the model of the only document in ``found``, ``default`` if there is none."""
    for document in found[1:]:
        errors.add_for(document, ("kind",), f"only one document of this kind is allowed; the first is {found[0].where}")
    taken = [take(made) for document in found for made in _validate(document, model, errors, _document_spec, {})]
    return taken[0] if taken else default


def _validate(
    document: DefinitionDocument,
    model: type[M],
    errors: DefinitionErrors,
    spec: Callable[[DefinitionDocument], Mapping[str, Any]],
    more: Mapping[str, Any],
) -> Iterator[M]:
    for name in document.content:
        if name not in ("apiVersion", "kind", "metadata", "spec"):
            errors.add_for(document, (name,), "is unknown")
    given = document.content.get("spec")
    if not isinstance(given, dict):
        errors.add_for(document, ("spec",), "must be an object" if "spec" in document.content else "is missing")
        return
    strange = [name for name in given if not isinstance(name, str) or name == "name"]
    for name in strange:
        errors.add_for(document, ("spec", name), "is unknown")
    try:
        yield model(**{name: value for name, value in spec(document).items() if name not in strange}, **more)
    except ValidationError as error:
        for each in error.errors():
            if each["loc"] == ("indicator",) and "indicatorRef" in given:
                continue  # the error of the reference is reported
            for line in error_lines(each, model):
                errors.add_for(document, error_path(each), line)
