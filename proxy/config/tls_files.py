"""Files that ``tls`` and ``upstream.tls`` of listeners name: certificates and keys, and whether they can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proxy.config.document import ConfigDocument, Problem
from proxy.config.keys import printable
from proxy.config.model import Config, texts_of_files
from proxy.config.regular_files import file_state, read_regular
from proxy.config.secret_files import read_reference
from proxy.config.values import FileState, FileText, Secret
from proxy.tls.certificates import first_of
from proxy.tls.contexts import TlsSettingError, build_client_context, build_server_context

SECTIONS = ("tls", "upstream.tls")
LOCATIONS = ("ssl.certificate.location", "ssl.key.location", "ssl.truststore.location")
PASSWORD = "ssl.key.password"  # noqa: S105 - the name of a key

MAX_PEM_BYTES = 1_048_576
"""Bytes of one file; all CAs of a system have 220,000."""


def read_tls_files(document: ConfigDocument, folder: Path) -> Iterator[Problem]:
    """Replace names of files by their contents; relative names are relative to ``folder``.

    Yields a problem for each file that cannot be read.
    """
    listeners = document.get(("listeners",))
    for number, listener in enumerate(listeners if isinstance(listeners, list) else ()):
        for section in SECTIONS if isinstance(listener, dict) else ():
            if section in listener and listener[section] is None:
                listener[section] = {}  # all of its keys may be commented out, and TLS is wanted all the same
            if isinstance(listener.get(section), dict):
                yield from _read_section(listener[section], ("listeners", number, section), folder)


def _read_section(section: dict[str, Any], path: tuple[str | int, ...], folder: Path) -> Iterator[Problem]:
    for name in LOCATIONS:
        value = section.get(name)
        if isinstance(value, str) and value and "\0" not in value:
            try:
                section[name] = _read_pem(value, folder)
            except ValueError as error:
                yield Problem((*path, name), f"file {printable(repr(value))} {error}", final=True)
    password = section.get(PASSWORD)
    if isinstance(password, dict):
        try:
            section[PASSWORD] = Secret(read_reference(password, folder))
        except ValueError as error:
            yield Problem((*path, PASSWORD), str(error), final=True)
    elif password is not None:
        yield Problem((*path, PASSWORD), "must not stand in the configuration (allowed: {file: PATH})", final=True)


def _read_pem(name: str, folder: Path) -> FileText:
    state = file_state(folder / name)  # before it is read: what is written later is a change
    try:
        content = read_regular(folder / name, MAX_PEM_BYTES + 1)
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("is not text (allowed: a file in PEM)") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror} (allowed: a file in PEM)") from None
    if len(content) > MAX_PEM_BYTES:
        raise ValueError(f"holds more than {MAX_PEM_BYTES} bytes (allowed: up to {MAX_PEM_BYTES})")
    return FileText(text, name, str(folder / name), state)


def check_tls(config: Config) -> Iterator[Problem]:
    """Yield a problem for each listener with which there can be no TLS: a key of another certificate, for example."""
    for number, listener in enumerate(config.listeners):
        checks: list[tuple[str, Callable[[], object]]] = []
        if (tls := listener.tls) is not None:
            checks.append(("tls", lambda tls=tls: build_server_context(tls.settings())))  # type: ignore[misc]
        if (tls_up := listener.upstream_tls) is not None:
            host = listener.upstream.host
            checks.append(("upstream.tls", lambda tls=tls_up, host=host: build_client_context(tls.settings(host))))  # type: ignore[misc]
        for section, build in checks:
            try:
                build()
            except TlsSettingError as error:
                yield Problem(("listeners", number, section, error.key), str(error))


def certificate_problems(config: Config, now: float) -> dict[tuple[str | int, ...], str]:
    """Return which certificates of ``config`` are not valid at ``now`` (seconds since 1970), and why.

    A sidecar starts with them, as brokers do: clients may accept them. A reload refuses them.
    """
    found: dict[tuple[str | int, ...], str] = {}
    for path, text in texts_of_files(config):
        if path[-1] != LOCATIONS[0]:
            continue
        certificate = first_of(text.reveal())
        if now >= certificate.not_after:
            found[path] = f"has expired at {_utc(certificate.not_after)}"
        elif now < certificate.not_before:
            found[path] = f"is not valid before {_utc(certificate.not_before)}"
    return found


def states_of_files(config: Config) -> dict[Path, FileState]:
    """Return the files whose texts are part of ``config``, each as it was when it was read."""
    return {Path(text.path): text.state for _, text in texts_of_files(config)}


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
