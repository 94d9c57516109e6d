"""Message sets of magic 0 and 1 as Kafka's own Java classes write them; ``tests/tools/MessageSets.java`` made the file.

Each is two lines: ``set <magic> <codec> <number of records>``, and its bytes in base64.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent / "message-sets-java-3.9.2.b64"


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
