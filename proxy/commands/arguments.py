"""How commands and their arguments are put on the command line."""

from __future__ import annotations

import difflib
import os
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from proxy.config import Endpoint

    Commands = _SubParsersAction[ArgumentParser]

Converted = TypeVar("Converted")

WRONG_USAGE = 2

ADMIN = "BROKERSIDE_ADMIN"
TABLES = "BROKERSIDE_TABLES"
"""Variables of the environment with defaults of ``--admin`` and ``--tables``. An option goes before its variable. They
are no keys of the configuration (``proxy.config.environment.NOT_KEYS``)."""

_NO_CHOICE = re.compile(r"argument (.+?): invalid choice: (['\"])(.*?)\2")


class CommandParser(ArgumentParser):
    """A parser whose errors say what may have been meant, with the usage of the command that they are about."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse ``args``. Arguments that are left are an error of this command; argparse has only the first parser."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            options = [option for action in self._actions for option in action.option_strings]
            hints = [did_you_mean(word.partition("=")[0], options) for word in left if word.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(left)}{next(filter(None, hints), '')}")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Print the usage and ``message``, and exit. For a wrong choice, name the nearest one."""
        found = _NO_CHOICE.match(message)
        if found is not None:
            named, value = found[1], found[3]
            for action in self._actions:
                if action.choices is None or named not in ("/".join(action.option_strings), action.metavar):
                    continue
                if named == COMMAND:
                    hint = did_you_mean(value, _listed(action)) or f"; {self.prog} --help lists them"
                    message = f"there is no command {value!r}{hint}"
                else:
                    message += did_you_mean(value, map(str, action.choices))
        super().error(message)


COMMAND = "COMMAND"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a half-sentence with the one of ``known`` that is most like ``word``; empty if none is."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _listed(commands: Any) -> Sequence[str]:
    """Return the names of commands that have a help text: the others are not for people."""
    return [choice.dest for choice in commands._choices_actions]


def from_environment(name: str, convert: Callable[[str], Converted]) -> Callable[[str], Converted]:
    """Return ``convert`` for an option whose default is the variable ``name``. Errors say where the value is from."""

    def converted(text: str) -> Converted:
        try:
            return convert(text)
        except ArgumentTypeError as error:
            if os.environ.get(name) != text:
                raise
            raise ArgumentTypeError(f"{error} (from {name}, unless it was given)") from None

    return converted


def commands_of(parser: ArgumentParser) -> Commands:
    """Let ``parser`` have commands; without one it prints its help, as a wrong usage."""
    parser.set_defaults(act=partial(_help, parser))
    return parser.add_subparsers(title="commands", metavar=COMMAND)


def group(commands: Commands, name: str, meaning: str) -> Commands:
    """Add a command that has commands of its own."""
    return commands_of(commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False))


def command(commands: Commands, name: str, act: Callable[..., int | None], extra: str = "") -> ArgumentParser:
    """Add a command that calls ``act`` with its arguments. ``extra``: of the package, which has what it imports."""
    meaning = act.__doc__
    made = commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False)
    made.set_defaults(act=act, extra=extra)
    return made


def add_folder(parser: ArgumentParser, default: Path | None, meaning: str) -> None:
    """Add ``--dir``."""
    parser.add_argument("--dir", type=Path, dest="folder", default=default, metavar="PATH", help=meaning)


def add_output(parser: ArgumentParser, choices: tuple[str, ...] = ("table", "json", "yaml", "csv")) -> None:
    """Add ``--output``."""
    text = f"How data is printed: {', '.join(choices[:-1])} or {choices[-1]}; default: %(default)s."
    parser.add_argument("-o", "--output", choices=choices, default="table", metavar="FORM", help=text)


def add_admin(parser: ArgumentParser) -> None:
    """Add ``--admin``."""
    default = "127.0.0.1:9644"
    text = f"The sidecar's admin.bind; default: {ADMIN}, else {default}."
    kind, value = from_environment(ADMIN, endpoint), os.environ.get(ADMIN, default)
    parser.add_argument("--admin", type=kind, default=value, metavar="HOST:PORT", help=text)


def numbers(text: str) -> list[int]:
    """Return port numbers, comma-separated."""
    try:
        return [int(port) for port in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: allowed are port numbers, comma-separated") from None


def names(text: str) -> list[str]:
    """Return names, comma-separated."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"{text!r}: allowed are names, comma-separated")
    return found


def setting(text: str) -> tuple[str, str]:
    """Return a key and a value."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"{text!r}: allowed is KEY=VALUE")
    return key, value


def day(text: str) -> date:
    """Return a day."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: allowed is a day as 2026-09-22") from None


def instant(text: str) -> datetime:
    """Return an instant; without a time zone it is one of UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: allowed is an instant as 2026-09-22T12:30Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def count(text: str) -> int:
    """Return a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r}: allowed is a number of at least 1")
    return int(text)


def endpoint(text: str) -> Endpoint:
    """Return an address."""
    from proxy.config import Endpoint

    try:
        return Endpoint.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None


def _help(parser: ArgumentParser) -> int:
    parser.print_help()
    return WRONG_USAGE
