"""What the command asks of a sidecar that runs, over its admin endpoint."""

from __future__ import annotations

import http.client
from http import HTTPStatus
from typing import TypeVar

import msgspec
from msgspec import Struct

from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.quotas_view import QuotasView

Answer = TypeVar("Answer")

TIMEOUT = 10.0
"""Seconds for each step of an answer."""


class Reloaded(Struct):
    """What became of a reload: ``applied``, ``unchanged``, ``rejected`` or ``draining``."""

    result: str
    changed: list[str] = []
    """Keys with a new value."""
    errors: list[str] = []
    """Why it was rejected, one line each."""


def quotas(admin: Endpoint) -> QuotasView:
    """Return the present state of the limits. Raises LocalError where there is no sidecar that tells it."""
    status, body = _ask(admin, "GET", "/quotas")
    if status != HTTPStatus.OK:
        raise _strange(admin, "GET /quotas", status)
    return _decoded(admin, body, QuotasView)


def reload(admin: Endpoint) -> Reloaded:
    """Let the sidecar read its configuration again. Raises LocalError where there is no sidecar that does."""
    status, body = _ask(admin, "POST", "/reload")
    if status not in (HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE):
        raise _strange(admin, "POST /reload", status)
    return _decoded(admin, body, Reloaded)


def _ask(admin: Endpoint, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(admin.host, admin.port, timeout=TIMEOUT)  # never by a proxy, as urllib may
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionRefusedError:
        raise LocalError(f"no sidecar answers at {admin}; its address is admin.bind of its configuration") from None
    except (OSError, http.client.HTTPException) as error:
        raise LocalError(f"no sidecar answers at {admin}: {getattr(error, 'strerror', None) or error!r}") from None
    finally:
        connection.close()


def _strange(admin: Endpoint, asked: str, status: int) -> LocalError:
    return LocalError(f"{admin} answers {asked} with {status}: is it the admin endpoint of a sidecar of this version?")


def _decoded(admin: Endpoint, body: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        raise LocalError(f"{admin} answers, but not as a sidecar of this version does") from None
