"""Requests that the sidecar answers later than at once (``proxy.core.interceptor.Deferred``).

While a request is deferred its connection stands still. It is the first of the open requests, so the broker has no
reason to send anything but responses to the calls that are made here, one at a time. The relay passes all that it sends
to ``DeferredRequest.feed``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from proxy.core import apis
from proxy.core.interceptor import BrokerCall, Served
from proxy.core.wire import TRUNCATED, DecodeError, skip_tags
from proxy.errors import PeerError
from proxy.rpc.call import CORRELATION_ID_SIZE, encode_frame
from proxy.rpc.messages import RpcRequest

if TYPE_CHECKING:
    from proxy.net.relay import Relay  # which imports this module

MAX_DEFERRED_SECONDS = 28.0
"""Within which a deferred request is served; Java's clients give up after 30 s."""

CALL_SECONDS = 5.0
"""Within which the broker answers a call."""

MAX_CALL_RESPONSE = 4_194_304
"""Bytes of the longest response to a call, without its size."""

MAX_SERVED = 100
"""Deferred requests that a process serves at a time. Others wait for their turn; the wait is part of their time."""

MAX_RESPONSE_HEADER = 1024
"""Bytes of the longest such response up to its body; Kafka's have 8 or 9."""

CORRELATION_ID = 0


def create_slots() -> asyncio.Semaphore:
    """Return the slots that all connections of a process share."""
    return asyncio.Semaphore(MAX_SERVED)


class DeferredRequest:
    """One deferred request, from when it is due until it is answered or its connection ends.

    ``relay``: of its connection, which is asked to close where the broker does not answer as it must. ``serve``: as in
    ``Deferred``. ``slots``: one is taken while it is served (``create_slots``).
    """

    def __init__(
        self, relay: Relay, serve: Callable[[BrokerCall], Awaitable[Served]], slots: asyncio.Semaphore
    ) -> None:
        assert relay.session is not None
        self._relay = relay
        self._slots = slots
        self._account = relay.session.account
        self._called = (0, 0)  # api key and version
        self._response: asyncio.Future[bytes] | None = None  # of the call under way
        self._frame = bytearray()  # what came of its frame
        self._task = asyncio.get_running_loop().create_task(self._run(serve))

    def cancel(self) -> None:
        """The connection has ended."""
        self._task.cancel()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the broker. Raises PeerError for what is not the one response that it owes."""
        if self._response is None or self._response.done():
            raise PeerError("broker", "out_of_sync", f"{len(data)} bytes that nothing asked for")
        self._account.charge(len(data))
        self._frame += data
        frame, came = self._frame, len(self._frame)
        if came < 4:
            return
        size = int.from_bytes(frame[:4], "big", signed=True)
        if not CORRELATION_ID_SIZE <= size <= MAX_CALL_RESPONSE:
            raise PeerError("broker", "invalid_size", f"{size} bytes; allowed here: up to {MAX_CALL_RESPONSE}")
        if came >= 8 and (answered := int.from_bytes(frame[4:8], "big", signed=True)) != CORRELATION_ID:
            raise PeerError("broker", "out_of_sync", f"correlation id {answered}, not {CORRELATION_ID}")
        if came > size + 4:
            raise PeerError("broker", "out_of_sync", f"{came - size - 4} bytes after the response")
        if came == size + 4:
            self._response.set_result(bytes(frame[_response_header_size(*self._called, frame) :]))

    async def _run(self, serve: Callable[[BrokerCall], Awaitable[Served]]) -> None:
        answer: Served | Exception = RuntimeError("the deferred request was cancelled")
        try:
            async with asyncio.timeout(MAX_DEFERRED_SECONDS) as limit, self._slots:
                answer = await serve(self._call)
        except Exception as error:
            answer = TimeoutError(f"not served within {MAX_DEFERRED_SECONDS} s") if limit.expired() else error
        finally:
            if self._response is not None:  # ``serve`` has left its call to another task
                self._response.cancel()
            self._relay.answer_deferred(answer)

    async def _call(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """As ``BrokerCall``. Raises RuntimeError while another call is under way, and after ``serve`` has returned."""
        if self._response is not None or self._task.done():
            raise RuntimeError("a deferred request makes one call at a time")
        if apis.request_is_flexible(api_key, api_version):
            body = b"\0" + body  # the tagged fields of the header
        self._called = api_key, api_version
        self._response = asyncio.get_running_loop().create_future()
        request = RpcRequest(api_key, api_version, body)
        self._relay.call_broker(encode_frame(request, CORRELATION_ID, self._relay.client_id))
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await self._response
        except BaseException:  # what the broker sends later would be taken for the response to another request
            self._relay.close("broker_timeout", f"{apis.api_name(api_key)} was not answered in time")
            raise
        finally:
            if not self._relay.closed:
                self._account.charge(-len(self._frame))
            self._frame.clear()
            self._response = None


def _response_header_size(api_key: int, api_version: int, frame: bytearray) -> int:
    """Return how many bytes precede the body in a whole response."""
    if not apis.response_header_is_flexible(api_key, api_version):
        return 8
    try:
        return skip_tags(frame[:MAX_RESPONSE_HEADER], 8)
    except (*TRUNCATED, DecodeError) as error:
        raise PeerError("broker", "invalid_header", f"response to {apis.api_name(api_key)}") from error
