"""How commands and their arguments are put on the command line."""

from __future__ import annotations

import difflib
import os
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from proxy.protocol.private import BASE

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from proxy.config import Endpoint

    Commands = _SubParsersAction["CommandParser"]

Converted = TypeVar("Converted")

TakeWords = Callable[[Namespace, list[str]], None]
"""Makes arguments of words, beside what was parsed. Raises ArgumentTypeError."""

WRONG_USAGE = 2

ADMIN = "BROKERSIDE_ADMIN"
TABLES = "BROKERSIDE_TABLES"
"""Variables of the environment with defaults of ``--admin`` and ``--tables``. An option goes before its variable. They
are no keys of the configuration (``proxy.config.environment.NOT_KEYS``)."""

_NO_CHOICE = re.compile(r"argument (.+?): invalid choice: (['\"])(.*?)\2")


class CommandParser(ArgumentParser):
    """A parser whose errors say what may have been meant, with the usage of the command that they are about."""

    take_words: TakeWords | None = None
    """For words anywhere among the options: those of the argument ``WORDS``, and those that argparse leaves."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse ``args``. Arguments that are left are an error of this command; argparse has only the first parser."""
        parsed, left = super().parse_known_args(args, namespace)
        words: list[str] = []
        if self.take_words is not None:
            words = parsed.__dict__.pop(WORDS) or []
            words = [*([words] if isinstance(words, str) else words), *(one for one in left if not one.startswith("-"))]
            left = [word for word in left if word.startswith("-")]
        if left:
            options = [option for action in self._actions for option in action.option_strings]
            hints = [did_you_mean(word.partition("=")[0], options) for word in left if word.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(left)}{next(filter(None, hints), '')}")
        if self.take_words is not None:
            try:
                self.take_words(parsed, words)
            except ArgumentTypeError as error:
                self.error(str(error))
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
WORDS = "words"


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


def commands_of(parser: CommandParser) -> Commands:
    """Let ``parser`` have commands; without one it prints its help, as a wrong usage."""
    parser.set_defaults(act=partial(_help, parser))
    return parser.add_subparsers(title="commands", metavar=COMMAND)


def group(commands: Commands, name: str, meaning: str) -> Commands:
    """Add a command that has commands of its own."""
    return commands_of(commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False))


def command(commands: Commands, name: str, act: Callable[..., int | None], extra: str = "") -> CommandParser:
    """Add a command that calls ``act`` with its arguments. ``extra``: of the package, which has what it imports."""
    meaning = act.__doc__
    made = commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False)
    made.set_defaults(act=act, extra=extra)
    return made


def add_config(parser: ArgumentParser) -> None:
    """Add the sidecar's configuration, as ``config``: with ``-c`` or without."""
    either = parser.add_mutually_exclusive_group(required=True)
    text = "The sidecar's configuration, YAML."
    either.add_argument("config", nargs="?", type=_path, default=SUPPRESS, metavar="FILE", help=text)
    either.add_argument("-c", "--config", type=Path, default=SUPPRESS, metavar="FILE", help="The same.")


def _path(text: str) -> Path | str:
    """Return a path; but nothing for nothing, which argparse converts, too, where the file is given with ``-c``."""
    return text if text is SUPPRESS else Path(text)


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


class FurtherWords(NamedTuple):
    """One or more words after an address. ``convert`` makes the argument ``name`` of them."""

    name: str
    metavar: str
    meaning: str
    convert: Callable[[list[str]], object]


def add_listener(parser: CommandParser, further: FurtherWords | None = None) -> None:
    """Add the address of a sidecar's listener, as ``address``, and ``--command-config``.

    Options may stand anywhere among the words. argparse alone would refuse that, and would take the first further word
    for the address where the option has it.
    """
    words, meaning = "HOST:PORT", "A listener of a sidecar."
    if further is not None:
        words, meaning = f"{words} {further.metavar}", f"{meaning} {further.meaning}"

    def take(parsed: Namespace, found: list[str]) -> None:
        if parsed.address is None:
            if not found:
                raise ArgumentTypeError("one of the arguments HOST:PORT --bootstrap-server is required")
            parsed.address = endpoint(found.pop(0))
        if further is None and found:
            raise ArgumentTypeError(f"{found[0]!r}: allowed is one address, HOST:PORT or --bootstrap-server")
        if further is not None:
            if not found:
                raise ArgumentTypeError(f"the following arguments are required: {further.metavar}")
            setattr(parsed, further.name, further.convert(found))

    parser.take_words = take
    parser.add_argument(WORDS, nargs="?" if further is None else "*", metavar=words, help=meaning)
    text = "The same address, as Kafka's tools have it."
    parser.add_argument("--bootstrap-server", type=endpoint, dest="address", metavar="HOST:PORT", help=text)
    add_kafka_config(
        parser, "Properties file with TLS and SASL, for listeners that need them: Kafka's settings, or librdkafka's."
    )


def add_bootstrap_servers(parser: ArgumentParser, **arguments: Any) -> None:
    """Add ``--bootstrap-server``, by both names that it has."""
    names = "--bootstrap-server", "--bootstrap-servers"
    parser.add_argument(*names, dest="bootstrap_servers", metavar="TEXT", **arguments)


def add_kafka_config(parser: ArgumentParser, meaning: str) -> None:
    """Add ``--command-config``, by both names that it has."""
    names = "--command-config", "--kafka-config"
    parser.add_argument(*names, type=Path, dest="kafka_config", metavar="FILE", help=meaning)


API_KEYS = 10_000, 32_700
"""Inclusive: what private.api.key.base may be."""


def add_api_key(parser: ArgumentParser) -> None:
    """Add ``--api-key``."""
    text = "The sidecars' private.api.key.base; default: %(default)s."
    kind = partial(bounded, limits=API_KEYS, allowed=f"api keys from {API_KEYS[0]} to {API_KEYS[1]}")
    parser.add_argument("--api-key", type=kind, default=BASE, metavar="N", help=text)


def bounded(text: str, limits: tuple[int, int], allowed: str) -> int:
    """Return a number within ``limits``, inclusive. ``allowed``: what is, for the error."""
    with suppress(ValueError):
        if limits[0] <= (number := int(text)) <= limits[1]:
            return number
    raise ArgumentTypeError(f"{text!r}: allowed are {allowed}")


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
