from typing_extensions import Buffer

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import RequestFacts, ResponseFacts
from proxy.errors import Side

produce_request: int
produce_response: int
fetch_request: int
fetch_response: int
share_fetch_request: int
share_fetch_response: int

def walker_for_request(key: int, version: int) -> int | None: ...
def walker_for_response(key: int, version: int) -> int | None: ...
def walk_whole(
    walker: int, data: Buffer, start: int, end: int, version: int, side: Side
) -> RequestFacts | ResponseFacts: ...
def walk_often(walker: int, data: Buffer, version: int, times: int) -> None: ...

class BodyFeed:
    def __init__(self, walker: int, version: int, side: Side, api_key: int = 0) -> None: ...
    def feed(self, data: Buffer, start: int, end: int) -> None: ...
    def finish(self) -> RequestFacts | ResponseFacts: ...
    def size(self) -> int:
        """Return how many bytes it has kept."""
    def finish_into(self, exchange: Exchange, response: bool) -> int:
        """Put the facts into ``exchange``; return the bytes that they take."""

def new_feed(kind: int, api_key: int, version: int) -> BodyFeed:
    """Return what reads a body that comes in pieces."""

def read_whole(exchange: Exchange, kind: int, response: bool, data: Buffer, start: int, end: int) -> int:
    """Put the facts of the body ``data[start:end]`` into ``exchange``; return the bytes that they take."""
