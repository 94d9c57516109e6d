"""The admin endpoint, on loopback unless configured otherwise: /metrics, /livez, /readyz.

``/livez``: the process turns. ``/readyz``: it accepts connections and every upstream accepts one from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from proxy.config import Endpoint
from proxy.errors import LocalError

PROBE_TIMEOUT = 1.0
"""Seconds an upstream has to accept the probe of ``/readyz``."""


class Admin:
    """``metrics``: renders the Prometheus text and its content type. ``draining``: whether a shutdown has begun."""

    def __init__(
        self,
        bind: Endpoint,
        upstreams: dict[str, Endpoint],
        metrics: Callable[[], tuple[bytes, str]],
        draining: Callable[[], bool],
    ) -> None:
        self._bind = bind
        self._upstreams = upstreams
        self._metrics = metrics
        self._draining = draining
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
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _get_readyz(self, _: web.Request) -> web.Response:
        if self._draining():
            return web.Response(status=503, text="draining\n")
        problems = await asyncio.gather(*(_probe(name, upstream) for name, upstream in self._upstreams.items()))
        failed = [problem for problem in problems if problem]
        return web.Response(status=503 if failed else 200, text="\n".join(failed or ["ok"]) + "\n")


async def _probe(listener: str, upstream: Endpoint) -> str | None:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            _, writer = await asyncio.open_connection(upstream.host, upstream.port)
    except (OSError, TimeoutError) as error:
        return f"listener {listener}: upstream {upstream} does not accept: {error or 'timeout'}"
    writer.close()
    return None
