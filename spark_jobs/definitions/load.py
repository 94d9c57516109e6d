"""Reads definitions from files and folders: all of them are right, or all mistakes are told at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.definitions.model import API_VERSION
from spark_jobs.definitions.objectives import OPENSLO, SLI, SLO, Objective, with_indicator
from spark_jobs.definitions.prices import Owners, Prices, Zones
from spark_jobs.definitions.retention import Retention
from spark_jobs.errors import JobError

SUFFIXES = (".yaml", ".yml")

M = TypeVar("M")
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


@dataclass(frozen=True)
class _Document:
    where: str
    content: Mapping[str, Any]
    name: str


def load(paths: Sequence[Path | str]) -> Definitions:
    """Return what the documents in ``paths``, files or folders, declare. Raises JobError naming every mistake."""
    mistakes: list[str] = []
    by_kind: dict[str, list[_Document]] = {kind: [] for kind in KINDS}
    for document in _documents(paths, mistakes):
        kind = document.content.get("kind")
        if kind not in KINDS:
            mistakes.append(f"{document.where}: kind: {kind!r} is none of {', '.join(KINDS)}")
        elif document.content.get("apiVersion") != KINDS[kind]:
            mistakes.append(f"{document.where}: apiVersion: must be {KINDS[kind]}")
        else:
            by_kind[kind].append(document)
    slis = {sli.name: sli for sli in _named(by_kind["SLI"], SLI, mistakes)}
    slos = list(_with_indicators(by_kind["SLO"], slis, mistakes))
    made = Definitions(
        mirrors=tuple(_named(by_kind["Mirror"], Mirror, mistakes)),
        retention=_only_one(by_kind["Retention"], Retention, lambda one: one.tables, {}, mistakes),
        objectives=tuple(objective for slo in _named(slos, SLO, mistakes) for objective in slo.judged),
        prices=tuple(_named(by_kind["Prices"], Prices, mistakes)),
        owners=_only_one(by_kind["Owners"], Owners, lambda one: one, Owners(), mistakes),
        zones=_only_one(by_kind["Zones"], Zones, lambda one: one, Zones(), mistakes),
    )
    if mistakes:
        raise JobError("\n".join(mistakes) if len(mistakes) > 1 else mistakes[0])
    return made


def fingerprint(*parts: object) -> str:
    """Return a short text that changes when one of these definitions does."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _documents(paths: Sequence[Path | str], mistakes: list[str]) -> Iterator[_Document]:
    for path in map(Path, paths):
        files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
        if not files:
            mistakes.append(f"{path}: there is no file that ends in {' or '.join(SUFFIXES)}")
        for file in files:
            try:
                contents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                mistakes.append(f"{file}: cannot be read: {' '.join(str(error).split())}")
                continue
            for number, content in enumerate(contents, 1):
                if content is None:
                    continue
                where = f"{file}: document {number}"
                if isinstance(content, dict):
                    metadata = content.get("metadata")
                    name = metadata.get("name") if isinstance(metadata, dict) else None
                    yield _Document(where, content, name if isinstance(name, str) else "")
                else:
                    mistakes.append(f"{where}: must be an object with apiVersion, kind, metadata and spec")


def _with_indicators(slos: Sequence[_Document], slis: Mapping[str, SLI], mistakes: list[str]) -> Iterator[_Document]:
    """Give ``slos`` with the indicators that they refer to."""
    for slo in slos:
        spec = slo.content.get("spec")
        if not isinstance(spec, dict):
            yield slo
            continue
        try:
            yield replace(slo, content={**slo.content, "spec": with_indicator(spec, slis)})
        except ValueError as error:
            mistakes.append(f"{slo.where}: spec.indicatorRef: {spec['indicatorRef']!r}: {error}")


def _named(documents: Sequence[_Document], model: type[M], mistakes: list[str]) -> Iterator[M]:
    """Give what each of ``documents`` declares; each needs a name of its own."""
    seen: dict[str, str] = {}
    for document in documents:
        if not document.name:
            mistakes.append(f"{document.where}: metadata.name: is missing")
        elif document.name in seen:
            mistakes.append(f"{document.where}: metadata.name: {document.name} is also that of {seen[document.name]}")
        else:
            seen[document.name] = document.where
            yield from _made(document, model, {"name": document.name}, mistakes)


def _only_one(
    documents: Sequence[_Document], model: type[M], take: Callable[[M], V], default: V, mistakes: list[str]
) -> V:
    """Return what is taken of the only one of ``documents``, ``default`` if there is none."""
    mistakes += [f"{each.where}: kind: there is one already, {documents[0].where}" for each in documents[1:]]
    for document in documents[:1]:
        for made in _made(document, model, {}, mistakes):
            return take(made)
    return default


def _made(document: _Document, model: type[M], more: Mapping[str, Any], mistakes: list[str]) -> Iterator[M]:
    unknown = sorted(set(document.content) - {"apiVersion", "kind", "metadata", "spec"})
    spec = document.content.get("spec")
    if unknown or not isinstance(spec, dict):
        mistakes.append(f"{document.where}: {f'{unknown[0]}: is unknown' if unknown else 'spec: must be an object'}")
        return
    try:
        yield model(**{**spec, **more})
    except ValidationError as error:
        for each in error.errors():
            place = ".".join(str(step) for step in each["loc"])
            said = each["msg"].removeprefix("Value error, ")
            # A part as a whole would be a page of text.
            value = "" if isinstance(each["input"], dict | list | tuple) else f"{each['input']!r}: "
            mistakes.append(f"{document.where}: spec{'.' if place else ''}{place}: {value}{said}")
