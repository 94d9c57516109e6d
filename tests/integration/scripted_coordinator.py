"""A coordinator that does what a test says: it speaks the messages of consumers over a socket of loopback."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

from proxy.coordinator import wire

SECONDS = 60.0
"""For anything of the consumer's."""


class ScriptedCoordinator:
    """The only sidecar of its fleet: broker 1. One consumer at a time."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(SECONDS)
        self.port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._correlation_id = 0
        self.connection: socket.socket | None = None
        self._last_response: wire.ConsumerResponse | None = None
        self.registered: wire.RegisterConsumerRequest | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.hang_up()
        self._server.close()

    def hang_up(self) -> None:
        """Close the consumer's connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def accept(self) -> None:
        """Take the consumer's connection."""
        self.connection, _ = self._server.accept()
        self.connection.settimeout(SECONDS)

    def register(self, error_code: int = 0) -> wire.RegisterConsumerRequest:
        """Take a connection, and answer ClusterMetadata and RegisterConsumer."""
        self.accept()
        key, version, correlation_id, body = self._request()
        if key == wire.CLUSTER_METADATA:
            here = wire.EndpointEntry(1, "127.0.0.1", self.port)
            response = wire.encode_cluster_metadata_response(wire.ClusterMetadataResponse(0, 1, (here,)))
            self._send(wire.response_frame(correlation_id, response))
            key, version, correlation_id, body = self._request()
        assert key == wire.REGISTER_CONSUMER
        response = wire.RegisterConsumerResponse(error_code, 1, 1)
        self._send(wire.response_frame(correlation_id, wire.encode_register_consumer_response(version, response)))
        self.registered = wire.decode_register_consumer_request(version, body)
        return self.registered

    def ping(self) -> wire.ConsumerResponse:
        return self._call(wire.encode_ping(self._next(), wire.PingRequest(self._consumer_id, 0)))

    def ping_until_end(self) -> list[wire.ConsumerResponse]:
        """Ping until the consumer has closed its connection, and return its responses."""
        found = []
        try:
            while True:
                found.append(self.ping())
        except ConnectionError:
            return found

    def stop(self, *partitions: tuple[str, int]) -> wire.ConsumerResponse:
        """Stop these partitions; all without any."""
        request = wire.StopFetcherRequest(self._consumer_id, partitions or None)
        return self._call(wire.encode_stop_fetcher(self._next(), request))

    def start(self, *threads: list[tuple[str, int, int]]) -> wire.ConsumerResponse:
        """Assign topic, partition and offset, by thread."""
        assigned = tuple(
            wire.AssignedThread(
                f"{self._consumer_id}-{number}",
                tuple(wire.ConsumedOffset(topic, 1, partition, offset) for topic, partition, offset in partitions),
            )
            for number, partitions in enumerate(threads)
        )
        return self._call(
            wire.encode_start_fetcher(self._next(), wire.StartFetcherRequest(self._consumer_id, assigned, ()))
        )

    def receives_end(self) -> bool:
        """Wait until the consumer has closed its connection; whether it did so with a FIN."""
        assert self.connection is not None
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return False

    @property
    def _consumer_id(self) -> str:
        assert self.registered is not None
        return self.registered.consumer_id

    def _next(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def _send(self, frame: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(frame)

    def _call(self, frame: bytes) -> wire.ConsumerResponse:
        self._send(frame)
        response = wire.decode_response(self._frame())
        if response == self._last_response:  # a consumer that leaves repeats it, and so asks for the next ping
            response = wire.decode_response(self._frame())
        assert response.correlation_id == self._correlation_id
        self._last_response = response
        return response

    def _request(self) -> tuple[int, int, int, bytes]:
        frame = self._frame()
        key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        return key, version, correlation_id, frame[10 + max(0, length) :]

    def _frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        assert self.connection is not None
        data = b""
        while len(data) < size:
            more = self.connection.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the consumer has closed the connection")
            data += more
        return data
