"""The settings of ``observers.opentelemetry:OpenTelemetryLogsObserver``: their defaults, and all that can be wrong.

Names are those of OpenTelemetry's exporters (``OTEL_EXPORTER_OTLP_…``) and of the section ``audit``.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from observers.errors import ObserverError
from observers.http_connection import Url
from observers.otlp_encoding import IDENTITY

DEFAULT_PATH = "/v1/logs"

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "endpoint": "http://localhost:4318/v1/logs",
        "headers": "",
        "timeout.ms": 10_000,
        "compression": "none",
        "certificate": "",
        "client.certificate": "",
        "client.key": "",
        "resource.attributes": "",
        "exclude.topics": "",
        "exclude.principals": "",
        "mode": "event",
        "rollup.interval.ms": 1000,
        "offsets.interval.ms": 30_000,
        "inventory.interval.ms": 60_000,
        "queue.max.bytes": 16 * 1024 * 1024,
        "spool.path": "",
        "spool.max.bytes": 1024 * 1024 * 1024,
    }
)
"""Every setting."""

BOUNDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "timeout.ms": (100, 600_000),
        "rollup.interval.ms": (100, 60_000),
        "offsets.interval.ms": (1000, 3_600_000),
        "inventory.interval.ms": (1000, 3_600_000),
        "queue.max.bytes": (1024 * 1024, 1024 * 1024 * 1024),
        "spool.max.bytes": (16 * 1024 * 1024, 2**50),
    }
)
"""The least and the greatest value of each number."""

RESERVED_HEADERS = frozenset(
    ("host", "content-type", "content-encoding", "content-length", "transfer-encoding", "connection", "user-agent")
)
"""Headers that the observer itself sets."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,254}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PRINCIPAL = re.compile(r"[^:\s]+:.+")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


class OtlpSettings(Struct, frozen=True):
    """Settings that were checked."""

    url: Url
    headers: tuple[tuple[str, str], ...]
    timeout: float
    """Seconds."""
    compresses: bool
    certificate: str
    """Path of the CA certificates; empty for those of the system."""
    client_certificate: str
    client_key: str
    resource_attributes: Mapping[str, str]
    max_queue_bytes: int
    shared: Mapping[str, Any]
    """``event_observer.Destination.settings``."""

    def make_tls_context(self) -> ssl.SSLContext:
        """Read the certificates. Raises OSError, of which ssl.SSLError is one."""
        context = ssl.create_default_context(cafile=self.certificate or None)
        if self.client_certificate:
            context.load_cert_chain(self.client_certificate, self.client_key, password=_refuse_password)
        return context


def check_settings(settings: Mapping[str, Any], *, shows_headers: bool) -> OtlpSettings:
    """Return checked settings. ``shows_headers``: whether ``headers`` are in the configuration itself.

    Raises ObserverError, without secrets in its text.
    """
    for name in settings:
        if name not in DEFAULTS:
            raise ObserverError(f"{name}: is no setting (allowed: {', '.join(DEFAULTS)})")
    if settings.get("headers") and shows_headers:
        raise ObserverError("headers: must not stand in the configuration (allowed: {file: PATH})")
    values = {name: _typed(name, settings.get(name, default), default) for name, default in DEFAULTS.items()}
    url = _url(values["endpoint"])
    checked = OtlpSettings(
        url=url,
        headers=_headers(values["headers"]),
        timeout=values["timeout.ms"] / 1000,
        compresses=_one_of("compression", values["compression"], ("none", "gzip")) == "gzip",
        certificate=_path("certificate", values["certificate"]),
        client_certificate=_path("client.certificate", values["client.certificate"]),
        client_key=_path("client.key", values["client.key"]),
        resource_attributes=_resource_attributes(values["resource.attributes"]),
        max_queue_bytes=values["queue.max.bytes"],
        shared={
            "mode": _one_of("mode", values["mode"], ("event", "rollup")),
            "exclude.topics": _list(values, "exclude.topics", ",", _TOPIC, "topics, separated by commas"),
            "exclude.principals": _list(
                values, "exclude.principals", ";", _PRINCIPAL, "principals such as User:alice, separated by semicolons"
            ),
            "spool.path": _path("spool.path", values["spool.path"]),
            **{name: values[name] for name in BOUNDS if name in _SHARED_NUMBERS},
        },
    )
    _check_tls(checked)
    return checked


_SHARED_NUMBERS = ("rollup.interval.ms", "offsets.interval.ms", "inventory.interval.ms", "spool.max.bytes")


def _refuse_password() -> str:
    raise OSError("client.key needs a password (allowed: a key without one)")


def _typed(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ObserverError(f"{name}: {value!r} (allowed: text)")
        return value
    low, high = BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ObserverError(f"{name}: {value!r} (allowed: {low}–{high})")
    return value


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ObserverError(f"{name}: {value!r} (allowed: {' or '.join(allowed)})")
    return value


def _path(name: str, value: str) -> str:
    if value and (not value.startswith("/") or "\0" in value):
        raise ObserverError(f"{name}: {value!r} (allowed: an absolute path)")
    return value


def _url(text: str) -> Url:
    allowed = "http://HOST[:PORT][/PATH] or https://…, without user and password"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ObserverError(f"endpoint: is not a URL (allowed: {allowed})") from None
    if parts.username is not None or parts.password is not None:
        raise ObserverError(f"endpoint: holds a user or a password (allowed: {allowed})")
    target = (parts.path if parts.path not in ("", "/") else DEFAULT_PATH) + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""
    if (
        parts.scheme not in ("http", "https")
        or not _HOST.fullmatch(host)
        or port == 0
        or parts.fragment
        or not all("!" <= character <= "~" for character in target)
    ):
        raise ObserverError(f"endpoint: {text!r} (allowed: {allowed})")
    tls = parts.scheme == "https"
    return Url(tls, host, port or (443 if tls else 80), target)


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in _pairs("headers", text, _check_header, shows=False).items())


def _check_header(name: str, value: str) -> str:
    """Return what is allowed in place of a header; empty where it is fine."""
    if name.lower() in RESERVED_HEADERS:
        return f"none of {', '.join(sorted(RESERVED_HEADERS))}"
    if not _TOKEN.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        return "a name and a value of visible ASCII characters and spaces, others as %XX"
    return ""


def _resource_attributes(text: str) -> dict[str, str]:
    return _pairs("resource.attributes", text, _check_attribute, shows=True)


def _check_attribute(name: str, value: str) -> str:
    if name in IDENTITY or name.startswith("brokerside."):
        return f"none of {', '.join(IDENTITY)} or brokerside.…"
    return "" if _ATTRIBUTE.fullmatch(name) and value else "a name of A-Z a-z 0-9 _ . - and a value"


def _pairs(setting: str, text: str, check: Callable[[str, str], str], *, shows: bool) -> dict[str, str]:
    """Parse ``name=value,name=value``, with characters as %XX, as in ``OTEL_RESOURCE_ATTRIBUTES``."""
    found: dict[str, str] = {}
    for number, pair in enumerate(filter(None, (one.strip() for one in text.split(","))), 1):
        name, equals, value = pair.partition("=")
        name, value = unquote(name.strip()), unquote(value.strip())
        shown = f"{pair!r}" if shows else f"entry {number}"
        allowed = check(name, value) if equals else "name=value, several separated by commas"
        if allowed or name in found:
            raise ObserverError(f"{setting}: {shown} (allowed: {allowed or 'each name once'})")
        found[name] = value
    return found


def _list(values: Mapping[str, Any], name: str, mark: str, form: re.Pattern[str], allowed: str) -> tuple[str, ...]:
    found = tuple(one for one in (one.strip() for one in values[name].split(mark)) if one)
    for one in found:
        if not form.fullmatch(one):
            raise ObserverError(f"{name}: {one!r} (allowed: {allowed})")
    return found


def _check_tls(settings: OtlpSettings) -> None:
    files = {
        "certificate": settings.certificate,
        "client.certificate": settings.client_certificate,
        "client.key": settings.client_key,
    }
    if not settings.url.tls:
        for name, path in files.items():
            if path:
                raise ObserverError(f"{name}: {path!r}, but endpoint is not https (allowed: only with https)")
        return
    if bool(settings.client_certificate) != bool(settings.client_key):
        raise ObserverError("client.certificate, client.key: one without the other (allowed: both or neither)")
    try:
        settings.make_tls_context()
    except OSError as error:
        used = ", ".join(f"{name} {path!r}" for name, path in files.items() if path) or "the system's certificates"
        raise ObserverError(f"{used}: cannot be used: {error} (allowed: files in PEM form)") from None
