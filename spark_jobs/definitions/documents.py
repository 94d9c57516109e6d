"""YAML documents of files and folders, and the mistakes in them, each with its place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Document:
    """One document."""

    number: int
    """Its place among all documents of all files."""
    where: str
    """File and place in it, for a person."""
    content: Mapping[str, Any]
    name: str
    """From ``metadata.name``, empty without one."""
    root: yaml.Node
    """What ``content`` was made of."""

    def at(self, path: Sequence[str | int]) -> str:
        """Return the line and column of the value at ``path``, or of the nearest one above it that there is."""
        node = self.root
        mark = node.start_mark
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.start_mark
            elif isinstance(node, yaml.MappingNode):
                pairs = [(key, value) for key, value in node.value if key.value == str(step)]
                if not pairs:
                    break
                mark, node = pairs[-1][0].start_mark, pairs[-1][1]
            else:
                break
        return f"at line {mark.line + 1}, column {mark.column + 1}"


class Mistakes:
    """What is wrong, in the order of the documents, in whatever order it is found."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []

    def __str__(self) -> str:
        """Return a line for each of them, empty if there is none."""
        return "\n".join(text for _, text in sorted(self._found, key=lambda each: each[0]))

    def add(self, number: int, text: str) -> None:
        """Add a line about the document ``number``."""
        self._found.append((number, text))

    def of(self, document: Document, path: Sequence[str | int], text: str) -> None:
        """Add a line about the field at ``path`` of ``document``."""
        field = ".".join(map(str, path))
        self.add(document.number, f"{document.where}: {field}: {text} {document.at(path)}")


def documents(paths: Sequence[Path | str], mistakes: Mistakes) -> Iterator[Document]:
    """Give the documents of ``paths``: files, and folders with all their subfolders.

    What is no document is a mistake. Files and folders whose names begin with a dot are passed over: Kubernetes keeps
    a second copy of what it mounts in such a folder.
    """
    number = 0
    for path in map(Path, paths):
        try:
            files = sorted(_files(path)) if path.is_dir() else [path]
        except OSError as error:
            mistakes.add(number, f"{error.filename}: cannot be read: {error.strerror}")
            continue
        if not files:
            mistakes.add(number, f"{path}: there is no file that ends in {' or '.join(SUFFIXES)}")
        for file in files:
            for place, (root, content) in enumerate(_contents(file, number, mistakes), 1):
                number += 1
                if content is None:
                    continue
                where = f"{file}: document {place}"
                if isinstance(content, dict):
                    metadata = content.get("metadata")
                    name = metadata.get("name") if isinstance(metadata, dict) else None
                    yield Document(number, where, content, name if isinstance(name, str) else "", root)
                else:
                    mistakes.add(number, f"{where}: must be an object with apiVersion, kind, metadata and spec")
            number += 1


def _files(folder: Path) -> Iterator[Path]:
    """Give the files of ``folder`` and below, also behind links, each folder once. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    seen = {os.path.realpath(folder)}
    for at, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        new = {os.path.realpath(os.path.join(at, name)): name for name in sorted(folders) if name[0] != "."}
        folders[:] = [name for real, name in new.items() if real not in seen]
        seen |= set(new)
        yield from (Path(at, name) for name in names if name.endswith(SUFFIXES) and name[0] != ".")


def _contents(file: Path, number: int, mistakes: Mistakes) -> Iterator[tuple[yaml.Node, Any]]:
    """Give the documents of ``file``, as nodes and as what they say, up to where it cannot be read.

    ``number``: of the document before.
    """
    try:
        loader = _Loader(file.read_text(encoding="utf-8"))
        while loader.check_node():
            number += 1
            root = loader.get_node()
            assert root is not None
            content = loader.construct_document(root)
            for text in loader.twice:
                mistakes.add(number, f"{file}: {text}")
            loader.twice.clear()
            yield root, content
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        mistakes.add(number + 1, f"{file}: cannot be read: {' '.join(str(said).split())}")
    except RecursionError:
        mistakes.add(number + 1, f"{file}: cannot be read: it is nested too deeply")


class _Loader(yaml.SafeLoader):
    """Reads YAML as the safe loader does, and says which keys an object has twice: the last would win in silence."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    before = lines[key.tag, key.value]
                    self.twice.append(f"line {line}: {key.value}: is there already, in line {before}")
                lines.setdefault((key.tag, key.value), line)
        return node

    def construct_scalar_or_text(self, node: yaml.ScalarNode) -> Any:
        """Return the value of ``node``; the text of one that only looks like a date or a number, as 2026-02-30."""
        try:
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)
        except ValueError:
            return node.value


for _kind in ("timestamp", "int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_scalar_or_text)
