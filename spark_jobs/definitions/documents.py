"""Reads YAML documents from files and folders, and collects the errors in them with file and document number."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DOCUMENT_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class DefinitionDocument:
    """One YAML document."""

    number: int
    """Its number among the documents of all files."""
    where: str
    """File and number in the file, for messages."""
    content: Mapping[str, Any]
    name: str
    """From ``metadata.name``, empty if there is none."""
    root: yaml.Node
    """The node of ``content``, with lines and columns."""

    def at(self, path: Sequence[str | int]) -> str:
        """Return the line and column of the value at ``path``, or of its nearest parent that exists."""
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


class DefinitionErrors:
    """The errors in all documents. They are listed in the order of the documents."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []

    def __str__(self) -> str:
        """Return one line for each error, empty if there is none."""
        return "\n".join(text for _, text in sorted(self._found, key=lambda each: each[0]))

    def add(self, number: int, text: str) -> None:
        """Add an error in the document ``number``."""
        self._found.append((number, text))

    def add_for(self, document: DefinitionDocument, path: Sequence[str | int], text: str) -> None:
        """Add an error in the field at ``path`` of ``document``."""
        field = ".".join(map(str, path))
        self.add(document.number, f"{document.where}: {field}: {text} {document.at(path)}")


def read_documents(paths: Sequence[Path | str], errors: DefinitionErrors) -> Iterator[DefinitionDocument]:
    """Yield the documents of ``paths``: files, and folders with all their subfolders.

    A document that is not an object is an error. Files and folders whose names begin with a dot are skipped, because
    Kubernetes keeps a second copy of mounted files in such a folder.
    """
    number = 0
    for path in map(Path, paths):
        try:
            files = sorted(_find_files(path)) if path.is_dir() else [path]
        except OSError as error:
            errors.add(number, f"{error.filename}: cannot be read: {error.strerror}")
            continue
        if not files:
            errors.add(number, f"{path}: there is no file with the suffix {' or '.join(DOCUMENT_SUFFIXES)}")
        for file in files:
            for place, (root, content) in enumerate(_read_contents(file, number, errors), 1):
                number += 1
                if content is None:
                    continue
                where = f"{file}: document {place}"
                if isinstance(content, dict):
                    metadata = content.get("metadata")
                    name = metadata.get("name") if isinstance(metadata, dict) else None
                    yield DefinitionDocument(number, where, content, name if isinstance(name, str) else "", root)
                else:
                    errors.add(number, f"{where}: must be an object with apiVersion, kind, metadata and spec")
            number += 1


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield the files of ``folder`` and its subfolders. Links are followed, each folder once. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    seen = {os.path.realpath(folder)}
    for at, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        new = {os.path.realpath(os.path.join(at, name)): name for name in sorted(folders) if name[0] != "."}
        folders[:] = [name for real, name in new.items() if real not in seen]
        seen |= set(new)
        yield from (Path(at, name) for name in names if name.endswith(DOCUMENT_SUFFIXES) and name[0] != ".")


def _read_contents(file: Path, number: int, errors: DefinitionErrors) -> Iterator[tuple[yaml.Node, Any]]:
    """Yield each document of ``file``, as a node and as its content, up to the first syntax error.

    ``number``: of the document before.
    """
    try:
        loader = _DuplicateKeyLoader(file.read_text(encoding="utf-8"))
        while loader.check_node():
            number += 1
            root = loader.get_node()
            assert root is not None
            content = loader.construct_document(root)
            for text in loader.duplicates:
                errors.add(number, f"{file}: {text}")
            loader.duplicates.clear()
            yield root, content
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        errors.add(number + 1, f"{file}: cannot be read: {' '.join(str(reason).split())}")
    except RecursionError:
        errors.add(number + 1, f"{file}: cannot be read: it is nested too deeply")


class _DuplicateKeyLoader(yaml.SafeLoader):
    """The safe loader of PyYAML, which also collects duplicate keys: PyYAML would silently use the last one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    before = lines[key.tag, key.value]
                    self.duplicates.append(f"line {line}: {key.value}: is a duplicate of line {before}")
                lines.setdefault((key.tag, key.value), line)
        return node

    def construct_scalar_or_text(self, node: yaml.ScalarNode) -> Any:
        """Return the value of ``node``, or its text if it is an invalid date or number, for example 2026-02-30."""
        try:
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)
        except ValueError:
            return node.value


for _kind in ("timestamp", "int", "float"):
    _DuplicateKeyLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _DuplicateKeyLoader.construct_scalar_or_text)
