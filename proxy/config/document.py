"""Reads a YAML file into plain values whose lines and columns are known. Mistakes of the file itself are problems.

Aliases are read. A value with a YAML tag is a mistake. A line ``tag.NAME = VALUE`` of a broker's properties may stand
between the keys.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from proxy.config.keys import Path, format_path
from proxy.errors import ConfigError

MAX_VALUES = 10_000
"""Values in one file, aliases expanded; more is a mistake or an attack by aliases of aliases."""

ALLOWED = "allowed: text, numbers, true, false, lists and mappings, without tags"

TAGS, TAG_PREFIX = "tags", "tag."
"""The key of the mapping of tags, and the prefix of a key that is a single tag."""

_PROPERTY = re.compile(r"^(tag\.[^\s:='\"]+)[ \t]*=[ \t]*(.*?)[ \t\r]*$", re.MULTILINE)
"""``tag.NAME = VALUE``, as in a broker's ``server.properties``. In YAML a line that begins so is a mistake."""

_AFTER_ALL = (1 << 30, 0)
"""Line and column of a problem that has none: it is sorted behind all others."""


@dataclass(frozen=True)
class Problem:
    """One mistake at ``path``, in words.

    ``final``: no other problem of this value is reported. ``where``: its place, if the path does not contain it.
    """

    path: Path
    text: str
    final: bool = False
    where: str = ""


class ConfigDocument:
    """The values of a configuration before they are checked, and the place that each comes from."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._marks: dict[Path, yaml.Mark] = {}
        self._variables: dict[Path, str] = {}
        self._written: dict[Path, Path] = {}

    def relocate(self, path: Path, place: Path, value: Any) -> None:
        """Put ``value`` from ``path`` of the file at ``place``. Its problems are reported at ``path``."""
        above = self.get(place[:-1])
        above[place[-1]] = value
        self._written[place] = path

    def came_from_file(self, path: Path, mark: yaml.Mark) -> None:
        """Note that the value at ``path`` stands at ``mark`` of the file."""
        self._marks[path] = mark

    def came_from_variable(self, path: Path, variable: str) -> None:
        """Note that the value at ``path``, with all below it, was set by an environment variable."""
        self._marks = {other: mark for other, mark in self._marks.items() if other[: len(path)] != path}
        self._variables[path] = variable

    def variable(self, path: Path) -> str | None:
        """Return the environment variable that set the value at ``path`` or above it."""
        return next((self._variables[p] for p in _upwards(path) if p in self._variables), None)

    def get(self, path: Path) -> Any:
        """Return the value at ``path``, None if there is none."""
        value: Any = self.values
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def describe(self, problems: list[Problem]) -> list[str]:
        """Return one line per problem, in the order of the file."""
        ordered = sorted(problems, key=lambda problem: self._place(problem.path))
        return [self._describe(problem) for problem in ordered]

    def _describe(self, problem: Problem) -> str:
        path = self._written.get(problem.path, problem.path)
        text = f"{format_path(path)}: {problem.text}" if path else problem.text
        variable = self.variable(problem.path)
        place = self._place(problem.path)
        if problem.where:
            return f"{text} {problem.where}"
        if variable is not None:
            return f"{text} from {variable}"
        return text if place == _AFTER_ALL else f"{text} at line {place[0]}, column {place[1]}"

    def _place(self, path: Path) -> tuple[int, int]:
        """Return line and column of the value at ``path``, or of the nearest one above it that is in the file."""
        path = self._written.get(path, path)
        mark = next((self._marks[p] for p in _upwards(path) if p in self._marks), None)
        return _AFTER_ALL if mark is None else (mark.line + 1, mark.column + 1)


def _upwards(path: Path) -> list[Path]:
    return [path[:end] for end in range(len(path), 0, -1)]


def _as_yaml(line: re.Match[str]) -> str:
    """Return a tag's line of a broker's properties as YAML. Its value is the text as it is written."""
    key, value = line[1], line[2].replace("'", "''")
    return f"'{key}': '{value}'"


def parse(source: str, text: str, pause: Callable[[], None]) -> tuple[ConfigDocument, list[Problem]]:
    """Read YAML. Raises ConfigError if nothing can be read; returns other mistakes as problems.

    ``pause``: called before each value.
    """

    class Composer(yaml.composer.Composer):
        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            pause()
            node: yaml.Node | None = super().compose_node(parent, index)
            return node

    try:
        with garbage_collection_paused():
            root = _compose(_PROPERTY.sub(_as_yaml, text), Composer)
            reader = _Reader()
            document = reader.read(root)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(source, [f"is not text: a control character cannot stand in YAML at line {line}"]) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(source, [_syntax(error)]) from None
    except RecursionError:
        raise ConfigError(source, ["is nested too deeply, or holds an alias of itself"]) from None
    except _TooLarge:
        raise ConfigError(source, [f"holds more than {MAX_VALUES} values, aliases expanded"]) from None
    if document is None:
        raise ConfigError(source, ["is not a mapping of keys to values (allowed: lines such as broker.id: 1)"])
    return document, reader.problems


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector, for work that makes tens of thousands of objects and waits for nothing.

    A collection during such work would stop the traffic for 25 ms.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compose(text: str, composer: type[yaml.composer.Composer]) -> yaml.Node | None:
    """Return the nodes of ``text``, made by ``composer``. Raises YAMLError.

    libyaml reads it in a tenth of the time: 3,000 addresses in 60 ms. A text that it refuses is read again by the
    scanner in Python, which has better error messages.
    """
    if yaml.__with_libyaml__:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]  # public, but not exported

        class Fast(composer, CParser, yaml.resolver.Resolver):  # type: ignore[misc,valid-type]
            def __init__(self, stream: str) -> None:
                CParser.__init__(self, stream)
                composer.__init__(self)
                yaml.resolver.Resolver.__init__(self)

        with contextlib.suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=Fast)

    class Thorough(composer, yaml.SafeLoader):  # type: ignore[misc,valid-type]
        pass

    return yaml.compose(text, Loader=Thorough)


def parse_variable(path: Path, text: str) -> Any:
    """Read the text of an environment variable for the key at ``path`` as YAML. Raises ValueError if it is not YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        reader = _Reader()
        value = None if root is None else reader.value(path, root)
    except (yaml.YAMLError, RecursionError, _TooLarge):
        raise ValueError("is not YAML") from None
    if reader.problems:
        raise ValueError(reader.problems[0].text)
    return value


def _syntax(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f" {_at(mark)}"
    if error.context == "expected a single document in the stream":
        return f"holds a second YAML document{where} (allowed: one)"
    # Its text may quote the file, and with it a secret that somebody forgot to quote: "*hunter2" reads as an alias.
    what = "an alias without its anchor" if isinstance(error, yaml.composer.ComposerError) else error.problem
    return f"is not YAML: {what}{where}"


def _at(mark: yaml.Mark) -> str:
    return f"at line {mark.line + 1}, column {mark.column + 1}"


def _is_tag(path: Path) -> bool:
    return (len(path) == 2 and path[0] == TAGS) or (len(path) == 1 and str(path[0]).startswith(TAG_PREFIX))


class _TooLarge(Exception):
    pass


class _Reader:
    """Turns YAML nodes into values. A key that is given twice has its first value."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._document = ConfigDocument({})
        self._scalars = yaml.constructor.SafeConstructor()
        self._count = 0

    def read(self, root: yaml.Node | None) -> ConfigDocument | None:
        if root is None:
            return self._document
        values = self.value((), root)
        if not isinstance(values, dict):
            return None
        self._document.values = values
        return self._document

    def value(self, path: Path, node: yaml.Node) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            raise _TooLarge
        if isinstance(node, yaml.MappingNode):
            return self._mapping(path, node)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(path, node)
        try:
            value = self._scalars.construct_object(node)
            return node.value if _is_tag(path) else value  # 1.10 is no number there, nor is `yes` a boolean
        except (yaml.constructor.ConstructorError, ValueError):
            self.problems.append(Problem(path, f"is a value that YAML cannot read ({ALLOWED})", final=True))
            return None

    def _mapping(self, path: Path, node: yaml.MappingNode) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, yaml.ScalarNode):
                text = "holds a key that is not text (allowed: text)"
                self.problems.append(Problem(path, text, where=_at(mark)))
                continue
            key = key_node.value
            if key in values:
                where = f"at lines {lines[key]} and {mark.line + 1}"
                self.problems.append(Problem((*path, key), "is given twice (allowed: once)", where=where))
                continue
            lines[key] = mark.line + 1
            self._document.came_from_file((*path, key), mark)
            values[key] = self.value((*path, key), value_node)
        return values

    def _sequence(self, path: Path, node: yaml.SequenceNode) -> list[Any]:
        values = []
        for number, item in enumerate(node.value):
            self._document.came_from_file((*path, number), item.start_mark)
            values.append(self.value((*path, number), item))
        return values
