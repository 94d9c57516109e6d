"""Frames that real clients and real brokers exchanged, stored as text: ``<name>.txt`` beside this file.

A file begins with a line ``# who did what``. Each frame follows after an empty line as ``request|response <api key>
<version>``, the whole frame in hex (size prefix and header included), and ``= <facts>``: what a walker has to find.
A relay between clients and a broker wrote them (``tests/tools/capture.py`` of commit b7040227).
"""

from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

from proxy.compiled.walk_door import walk_whole, walker_for_request, walker_for_response
from proxy.core import apis
from proxy.core.exchange import RequestFacts, ResponseFacts
from proxy.core.wire import skip_tags, string
from proxy.errors import Side

FOLDER = Path(__file__).parent


class Frame(NamedTuple):
    """One frame; ``expected`` is the text of the facts."""

    kind: str  # request or response
    key: int
    version: int
    data: bytes
    expected: str = ""

    @property
    def side(self) -> Side:
        return "client" if self.kind == "request" else "broker"

    def body(self) -> int:
        if self.kind == "request":
            _, pos = string(self.data, 12)
            return skip_tags(self.data, pos) if apis.request_is_flexible(self.key, self.version) else pos
        return skip_tags(self.data, 8) if apis.response_header_is_flexible(self.key, self.version) else 8

    def facts(self) -> RequestFacts | ResponseFacts:
        find = walker_for_request if self.kind == "request" else walker_for_response
        walker = find(self.key, self.version)
        assert walker is not None
        return walk_whole(walker, self.data, self.body(), len(self.data), self.version, self.side)

    def moves_records(self) -> bool:
        """Whether any partition holds record bytes."""
        if self.key not in (0, 1, 78):
            return False
        return any(partition.records.size for partition in self.facts().partitions if hasattr(partition, "records"))


class Recording(NamedTuple):
    name: str
    provenance: str
    frames: tuple[Frame, ...]


def load(path: Path) -> Recording:
    head, *blocks = path.read_text().rstrip("\n").split("\n\n")
    return Recording(path.stem, head.removeprefix("# "), tuple(map(_frame, blocks)))


def _frame(block: str) -> Frame:
    head, *lines, expected = block.split("\n")
    kind, key, version = head.split()
    assert kind in ("request", "response")
    return Frame(kind, int(key), int(version), bytes.fromhex("".join(lines)), expected.removeprefix("= "))


def recordings() -> list[Recording]:
    return [load(path) for path in sorted(FOLDER.glob("*.txt"))]


FILE = FOLDER / "message-sets-java-3.9.2.b64"
"""Message sets of magic 0 and 1 as Kafka's own Java classes write them (``tests/tools/MessageSets.java`` of commit
a2f88a26 made the file).

Each is two lines: ``set <magic> <codec> <number of records>``, and its bytes in base64.
"""


class MessageSet(NamedTuple):
    magic: int
    codec: str
    records: int
    data: bytes


def message_sets() -> list[MessageSet]:
    lines = FILE.read_text().splitlines()
    found = []
    for head, text in zip(lines[::2], lines[1::2], strict=True):
        _, magic, codec, records = head.split()
        found.append(MessageSet(int(magic), codec, int(records), b64decode(text)))
    return found
