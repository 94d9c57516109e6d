"""Logs in over a socket that blocks: SASL PLAIN and SCRAM, as ``proxy.fleet.connection`` does it for asyncio."""

from __future__ import annotations

import socket
from collections.abc import Callable

from proxy.errors import PeerError
from proxy.fleet.scram import HASHES, Scram
from proxy.fleet.security import Security
from proxy.rpc import messages
from proxy.rpc.call import encode_frame
from proxy.rpc.messages import RpcRequest

LOGIN_SECONDS = 5.0
"""For each response of the login."""

MAX_LOGIN_BYTES = 64 * 1024
"""Of each response."""


def log_in(connected: socket.socket, security: Security, client_id: str) -> None:
    """Log in. Raises OSError, RequestRefused and PeerError. The socket blocks afterwards."""
    assert security.mechanism is not None
    connected.settimeout(LOGIN_SECONDS)

    def call(request: RpcRequest) -> bytes:
        connected.sendall(encode_frame(request, 0, client_id))
        size = int.from_bytes(_read_exactly(connected, 4), "big", signed=True)
        if not 4 <= size <= MAX_LOGIN_BYTES:
            raise PeerError("broker", "malformed", f"an answer of {size} bytes within the login")
        return _read_exactly(connected, size)[4:]

    messages.check_sasl_handshake(call(messages.sasl_handshake_request(security.mechanism)))
    if security.mechanism == "PLAIN":
        _step(call, f"\0{security.user}\0{security.password}".encode())
        return
    scram = Scram(HASHES[security.mechanism], security.user, security.password)
    challenge = _step(call, scram.first_message())
    scram.verify_server(_step(call, scram.final_message(challenge)))


def _step(call: Callable[[RpcRequest], bytes], token: bytes) -> bytes:
    return messages.decode_sasl_token(call(messages.sasl_authenticate_request(token)))


def _read_exactly(connected: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        read = connected.recv(size - len(data))
        if not read:
            raise ConnectionResetError("closed within the login")
        data += read
    return data
