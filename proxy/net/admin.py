"""The admin endpoint, on loopback unless configured otherwise: /metrics, /livez, /readyz.

``/livez``: the process turns. ``/readyz``: it accepts connections, every upstream accepts one from here, and the broker
there is the one it was configured for.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from proxy.config import Config, Listener
from proxy.errors import LocalError
from proxy.net import identity
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
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Raises LocalError where the address cannot be had."""
        app = web.Application()
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/livez", self._get_livez)
        app.router.add_get("/readyz", self._get_readyz)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._bind.host, self._bind.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise LocalError(f"cannot listen on {self._bind} (admin.bind): {error.strerror}") from None

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _get_metrics(self, _: web.Request) -> web.Response:
        body, content_type = await asyncio.to_thread(render, await self._sidecar.snapshot())
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _get_readyz(self, _: web.Request) -> web.Response:
        if problem := self._sidecar.problem:
            return web.Response(status=503, text=f"{problem}\n")
        problems = await asyncio.gather(*(self._probe(listener) for listener in self._config.listeners))
        failed = [problem for problem in problems if problem]
        return web.Response(status=503 if failed else 200, text="\n".join(failed or ["ok"]) + "\n")

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
