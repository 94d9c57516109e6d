"""How commands and their arguments are put on the command line."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from proxy.config import Endpoint

    Commands = _SubParsersAction[ArgumentParser]

WRONG_USAGE = 2


def commands_of(parser: ArgumentParser) -> Commands:
    """Let ``parser`` have commands; without one it prints its help, as a wrong usage."""
    parser.set_defaults(act=partial(_help, parser))
    return parser.add_subparsers(title="commands", metavar="COMMAND")


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


def add_output(parser: ArgumentParser, choices: tuple[str, ...] = ("table", "json", "csv")) -> None:
    """Add ``--output``."""
    text = f"How data is printed: {', '.join(choices[:-1])} or {choices[-1]}; default: %(default)s."
    parser.add_argument("-o", "--output", choices=choices, default="table", metavar="FORM", help=text)


def add_admin(parser: ArgumentParser) -> None:
    """Add ``--admin``."""
    text = "The sidecar's admin.bind; default: %(default)s."
    parser.add_argument("--admin", type=endpoint, default="127.0.0.1:9644", metavar="HOST:PORT", help=text)


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
