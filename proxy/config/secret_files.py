"""Values of ``internal`` and ``observers`` that are in files of their own, ``{file: PATH}``, and files of HMAC keys.

Secrets must be in such files, so that the configuration itself can be shown to anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.config.document import ConfigDocument, Problem
from proxy.config.hmac_keys import load_text
from proxy.config.keys import KEYS, printable
from proxy.config.regular_files import read_regular
from proxy.config.values import Secret

HMAC_KEYS = tuple(path for path in KEYS if path[-1] == "hmac.keys.file")

MAX_SECRET_BYTES = 65_536
"""Bytes of a secret's file; a key in PEM form has some thousands."""

_MARKS = ("password", "secret", "passphrase", ".pem")
_MORE = {"sasl.oauthbearer.config"}
_PUBLIC = {"ssl.certificate.pem", "ssl.ca.pem"}


def is_secret(setting: str) -> bool:
    """Return whether librdkafka's ``setting`` holds a secret."""
    return setting not in _PUBLIC and (setting in _MORE or any(mark in setting for mark in _MARKS))


def read_secret_files(document: ConfigDocument, folder: Path) -> Iterator[Problem]:
    """Replace names of files by their contents; relative names are relative to ``folder``.

    Yields a problem for each file that cannot be read, or is wrong, and for each secret in the configuration itself.
    """
    for path in HMAC_KEYS:
        yield from _read_hmac_keys(document, folder, path)
    observers = document.values.get("observers")
    for name, settings in observers.items() if isinstance(observers, dict) else ():
        if isinstance(settings, dict):
            yield from _read_files(settings, ("observers", name), folder)
    settings = document.values.get("internal")
    if not isinstance(settings, dict):
        return
    yield from _read_files(settings, ("internal",), folder)
    for name, value in settings.items():
        path = ("internal", name)
        if is_secret(name) and not isinstance(value, Secret | dict):
            variable = "BROKERSIDE_INTERNAL__" + name.upper().replace(".", "_")
            text = f"must not stand in the configuration (allowed: {{file: PATH}}, or the variable {variable})"
            yield Problem(path, text, final=True)


def _read_files(settings: dict[str, Any], path: tuple[str, ...], folder: Path) -> Iterator[Problem]:
    """Replace the references to files among ``settings``, or yield what is wrong with them."""
    for name, value in settings.items():
        if isinstance(value, dict):
            try:
                settings[name] = Secret(read_reference(value, folder))
            except ValueError as error:
                yield Problem((*path, name), str(error), final=True)


def _read_hmac_keys(document: ConfigDocument, folder: Path, path: tuple[str, ...]) -> Iterator[Problem]:
    """Replace the name of a file of HMAC keys by its content, or yield what is wrong with it."""
    section = document.get(path[:-1])
    name = section.get(path[-1]) if isinstance(section, dict) else None
    if not isinstance(name, str) or not name or "\0" in name:
        return
    try:
        section[path[-1]] = Secret(load_text(folder / name))
    except ValueError as error:
        yield Problem(path, f"file {printable(repr(name))} {error}", final=True)


def read_reference(reference: dict[str, Any], folder: Path) -> str:
    """Return the text of the file that ``{file: PATH}`` refers to. Raises ValueError."""
    name = reference.get("file")
    if len(reference) != 1 or not isinstance(name, str) or not name:
        raise ValueError("is not a reference to a file (allowed: {file: PATH})")
    shown = printable(repr(name))
    try:
        content = read_regular(folder / name, MAX_SECRET_BYTES + 1)
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"file {shown} is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"file {shown} cannot be read: {error.strerror} (allowed: a file with one value)") from None
    except ValueError as error:  # a NUL in its name, or what it is
        raise ValueError(f"file {shown} {error}") from None
    if not text or len(content) > MAX_SECRET_BYTES:
        raise ValueError(f"file {shown} holds {len(content)} bytes (allowed: 1–{MAX_SECRET_BYTES})")
    return text
