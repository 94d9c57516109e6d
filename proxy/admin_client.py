"""Requests of the command line to the admin endpoint of a running sidecar."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from proxy.config import Endpoint
from proxy.coordinator.status import GroupsListing
from proxy.errors import LocalError, describe_os_error
from proxy.net.open_connections import ConnectionsView
from proxy.quotas_view import QuotasView

Decoded = TypeVar("Decoded")

ADMIN_REQUEST_TIMEOUT = 10.0
"""Seconds for each step of a request."""


class ErrorReply(Struct):
    """Why a request was refused."""

    error: str


class LastApplied(Struct):
    """The last change of the configuration. ``at``: seconds since 1970. ``reason``: ``file``, ``SIGHUP``, ``admin``."""

    changed: list[str]
    at: float
    reason: str


class ReloadReply(Struct):
    """The result of a reload: ``applied``, ``unchanged``, ``rejected`` or ``draining``."""

    result: str
    changed: list[str] = []
    """The keys with a new value."""
    changes: list[tuple[str, str, str]] = []
    """The same, each with its value before and after; ``***`` for what is not shown."""
    errors: list[str] = []
    """Why the reload was rejected, one line each."""
    last_applied: LastApplied | None = None
    """Of an unchanged configuration, what was applied before; None if nothing was since the start."""


class EvacuationReply(Struct):
    """Whether other sidecars coordinate all groups of this one."""

    evacuated: bool


class CloseReply(Struct):
    """The id of the connection that was closed."""

    closed: str


def get_quotas(admin: Endpoint) -> QuotasView:
    """Return the current state of the limits. Raises LocalError if no sidecar answers."""
    status, body = _send_request(admin, "GET", "/quotas")
    if status != HTTPStatus.OK:
        raise _unexpected_status(admin, "GET /quotas", status)
    return _decode(admin, body, QuotasView)


def get_connections(admin: Endpoint, query: Mapping[str, str]) -> ConnectionsView:
    """Return open connections; ``query``: which. Raises LocalError if no sidecar answers, or it refuses ``query``."""
    status, body = _send_request(admin, "GET", f"/connections?{urlencode(query)}")
    if status == HTTPStatus.BAD_REQUEST:
        raise LocalError(_decode(admin, body, ErrorReply).error)
    if status != HTTPStatus.OK:
        raise _unexpected_status(admin, "GET /connections", status)
    return _decode(admin, body, ConnectionsView)


def get_groups(admin: Endpoint, group: str | None = None) -> GroupsListing:
    """Return the groups that a sidecar coordinates, or one of them with its consumers.

    Raises LocalError if no sidecar answers, or it does not coordinate ``group``.
    """
    query = "" if group is None else f"?{urlencode({'group': group})}"
    status, body = _send_request(admin, "GET", f"/groups{query}")
    if status == HTTPStatus.NOT_FOUND and body.startswith(b"{"):
        raise LocalError(_decode(admin, body, ErrorReply).error)
    if status != HTTPStatus.OK:
        raise _unexpected_status(admin, "GET /groups", status)
    return _decode(admin, body, GroupsListing)


def post_evacuation(admin: Endpoint, action: str) -> bool:
    """Let other sidecars coordinate all groups (``evacuate``), or this one again (``return``); return which.

    Raises LocalError if no sidecar answers, or it coordinates no groups at all.
    """
    status, body = _send_request(admin, "POST", f"/coordinator/{action}")
    if status == HTTPStatus.CONFLICT:
        raise LocalError(_decode(admin, body, ErrorReply).error)
    if status != HTTPStatus.OK:
        raise _unexpected_status(admin, f"POST /coordinator/{action}", status)
    return _decode(admin, body, EvacuationReply).evacuated


def get_metrics(admin: Endpoint) -> str:
    """Return the text of the metrics. Raises LocalError if no sidecar answers."""
    status, body = _send_request(admin, "GET", "/metrics")
    if status != HTTPStatus.OK:
        raise _unexpected_status(admin, "GET /metrics", status)
    return body.decode()


def post_close_connection(admin: Endpoint, connection: str) -> str:
    """Close an open connection, and return its id. ``connection``: its id, or the number at the end of that.

    Raises LocalError if no sidecar answers, or it has no such connection.
    """
    status, body = _send_request(admin, "POST", f"/connections/close?{urlencode({'id': connection})}")
    refused = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
    if status in refused and body.startswith(b"{"):
        raise LocalError(_decode(admin, body, ErrorReply).error)
    if status != HTTPStatus.OK:
        raise _unexpected_status(admin, "POST /connections/close", status)
    return _decode(admin, body, CloseReply).closed


def post_reload(admin: Endpoint) -> ReloadReply:
    """Let the sidecar reload its configuration. Raises LocalError if no sidecar answers."""
    status, body = _send_request(admin, "POST", "/reload")
    if status not in (HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE):
        raise _unexpected_status(admin, "POST /reload", status)
    return _decode(admin, body, ReloadReply)


def _send_request(admin: Endpoint, method: str, path: str) -> tuple[int, bytes]:
    # Unlike urllib, this uses no HTTP proxy.
    connection = http.client.HTTPConnection(admin.host, admin.port, timeout=ADMIN_REQUEST_TIMEOUT)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionRefusedError:
        raise LocalError(f"no sidecar answers at {admin}; its address is admin.bind of its configuration") from None
    except OSError as error:
        raise LocalError(f"no sidecar answers at {admin}: {describe_os_error(error)}") from None
    except http.client.HTTPException:
        raise LocalError(f"{admin} does not answer in HTTP: is it the admin endpoint of a sidecar?") from None
    finally:
        connection.close()


def _unexpected_status(admin: Endpoint, request: str, status: int) -> LocalError:
    return LocalError(
        f"{admin} answers {request} with {status}: is it the admin endpoint of a sidecar of this version?"
    )


def _decode(admin: Endpoint, body: bytes, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        raise LocalError(f"{admin} answers, but not as a sidecar of this version does") from None
