"""The admin endpoint, on loopback unless configured otherwise: /metrics, /livez, /readyz.

``/livez``: the process turns. ``/readyz``: it accepts connections, every upstream accepts one from here, and the broker
there is the one it was configured for.
"""

from __future__ import annotations

import asyncio

from proxy.config import Config, Listener
from proxy.errors import LocalError
from proxy.net import identity
from proxy.net.http import HttpServer, Response
from proxy.net.sidecar import Sidecar
from proxy.telemetry.metrics import render

PROBE_TIMEOUT = 1.0
"""Seconds an upstream has to accept the probe of ``/readyz``."""


class Admin:
    """Tells of ``sidecar``."""

    def __init__(self, config: Config, sidecar: Sidecar) -> None:
        self._config = config
        self._bind = config.admin.bind
        self._identified: set[str] = set()  # listeners whose broker is known to be the right one
        self._sidecar = sidecar
        self._server = HttpServer(
            {"/metrics": self._metrics, "/livez": self._livez, "/readyz": self._readyz},
            {},
        )

    async def start(self) -> None:
        """Raises LocalError where the address cannot be had."""
        try:
            await self._server.start(self._bind.host, self._bind.port)
        except OSError as error:
            raise LocalError(f"cannot listen on {self._bind} (admin.bind): {error.strerror}") from None

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close()

    async def _metrics(self) -> Response:
        text, content_type = await asyncio.to_thread(render, await self._sidecar.snapshot())
        return Response(text, content_type=content_type)

    async def _livez(self) -> Response:
        return Response(b"ok\n")

    async def _readyz(self) -> Response:
        problems = [self._sidecar.problem]
        if not any(problems):
            problems = await asyncio.gather(*(self._probe(listener) for listener in self._config.listeners))
        failed = [problem for problem in problems if problem]
        return Response("".join(f"{line}\n" for line in failed or ["ok"]).encode(), 503 if failed else 200)

    async def _probe(self, listener: Listener) -> str | None:
        """What keeps this listener from being ready; the broker's identity is asked for until it is right."""
        try:
            if listener.name not in self._identified and listener.security_protocol == "PLAINTEXT":
                problem = await identity.problem(listener, self._config.broker_id)
                if problem is None:
                    self._identified.add(listener.name)
                return problem
            async with asyncio.timeout(PROBE_TIMEOUT):
                _, writer = await asyncio.open_connection(listener.upstream.host, listener.upstream.port)
            writer.close()
        except Exception as error:  # mostly OSError, but a name may also be no name
            return f"listener {listener.name}: upstream {listener.upstream}: {str(error) or 'no answer'}"
        return None
