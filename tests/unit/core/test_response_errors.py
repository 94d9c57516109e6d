"""Errors of items: of every version of every api, at each level of its response, whole and in pieces."""

import struct
from collections.abc import Iterator

import pytest

from observers.error_names import ERROR_NAMES
from proxy.compiled.exchange import Exchange, Kind
from proxy.compiled.walk_door import new_feed, read_whole
from proxy.core import response_errors
from proxy.core.apis import APIS
from proxy.core.encode import encode
from proxy.core.instructions import RESOURCE_TYPES
from proxy.core.response_errors import MAX_KEPT_FAILURES, MAX_KEPT_STEPS, WALKED, program
from proxy.core.schema import Field, Layout, layout
from proxy.core.wire import uvarint_bytes
from spark_jobs import kafka_errors
from tests.cases import each
from tests.tools.random_messages import length
from tests.unit.core.test_request_resources import TOPIC_ID, event_of, exchange

DENIED = 29
"""TOPIC_AUTHORIZATION_FAILED."""

EACH = 2
"""Elements of every array; the error is in the last one."""

Path = tuple[str, ...]


def versions() -> Iterator[tuple[int, int]]:
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            if key not in WALKED:
                yield key, version


def is_error(field: Field) -> bool:
    return field.name.endswith("ErrorCode") and field.type == "int16" and not field.array


def error_paths(made: Layout) -> Iterator[Path]:
    """Every field of a response that is an error code."""
    for field in (*made.ordered, *made.tagged.values()):
        if is_error(field):
            yield (field.name,)
        elif field.layout is not None:
            yield from ((field.name, *path) for path in error_paths(field.layout))


CASES = [
    (key, version, path) for key, version in versions() for path in error_paths(layout(key, version, response=True))
]


def written(made: Layout, path: Path, where: str = "") -> bytes:
    """A struct with the error of ``path``; every text says where it stands."""
    parts = [value_of(field, made.flexible, path, where) for field in made.ordered]
    if made.flexible:
        tagged = [field for field in made.tagged.values() if (field.name,) == path]
        parts.append(uvarint_bytes(len(tagged)))
        parts += [uvarint_bytes(field.tag or 0) + b"\2" + struct.pack(">h", DENIED) for field in tagged]
    return b"".join(parts)


def value_of(field: Field, flexible: bool, path: Path, where: str) -> bytes:
    inner = path[1:] if path[:1] == (field.name,) else ()
    if field.array:
        items = [one(field, flexible, inner if n == EACH - 1 else (), f"{where}{n}") for n in range(EACH)]
        return length(EACH, flexible, 4) + b"".join(items)
    if field.layout is not None and field.nullable:
        return b"\1" + one(field, flexible, inner, where)
    if (field.name,) == path:
        return struct.pack(">h", DENIED)
    return one(field, flexible, inner, where)


def one(field: Field, flexible: bool, path: Path, where: str) -> bytes:
    match field.type:
        case "struct":
            return written(field.layout, path, where)
        case "string":
            text = f"{field.name}{where}".encode()
            return length(len(text), flexible, 2) + text
        case "bytes" | "records":
            return length(300, flexible, 4) + bytes(300)
        case "uuid":
            return TOPIC_ID
        case "int8" if field.name == "ResourceType":
            return b"\2"
        case "int32":
            return struct.pack(">i", 7)
        case _:
            made = Layout(False, (Field(field.name, field.type, 0),), {}, {}, (), frozenset(), None, None)
            return encode(made, {})


def read(key: int, version: int, body: bytes, pieces: int = 0) -> Exchange:
    """The exchange whose response this is; in pieces of as many bytes, or whole."""
    reported = exchange(key, version)
    if not pieces:
        read_whole(reported, Kind.RESPONSE_ERRORS, True, body, 0, len(body))
        return reported
    feed = new_feed(Kind.RESPONSE_ERRORS, key, version)
    for at in range(0, len(body), pieces):
        feed.feed(body, at, min(at + pieces, len(body)))
    feed.finish_into(reported, True)
    return reported


@pytest.mark.promise(
    "audit-event.md", "An error at any level of any response is in the event, with the item that it belongs to."
)
@each(("key", "version", "path"), CASES)
def test_an_error_at_each_level_is_in_the_event(key: int, version: int, path: Path) -> None:
    made = layout(key, version, response=True)
    body = written(made, path)
    if program(key, version) is None:  # its only error code stands at its beginning
        assert len(path) == 1
        assert path[0] in [field.name for field in made.ordered[:2]]
        return
    for pieces in (0, 1, 3, 100):
        reported = read(key, version, body, pieces)
        if len(path) == 1:
            assert (reported.error_code, reported.item_errors) == (DENIED, None)
            continue
        assert reported.error_code == 0
        (item,) = reported.item_errors.items
        assert (item.error_code, reported.item_errors.failures) == (DENIED, 1)
        assert item.resource_type in RESOURCE_TYPES[1:]
        assert item.index == EACH - 1
        if item.resource_name is not None:
            assert item.resource_name.decode().endswith(str(EACH - 1))
        elif item.topic_id is None:
            assert item.resource_type in ("acl", "client_quota")
    event = event_of(reported)
    assert event.error_code == (DENIED if len(path) == 1 else 0)
    assert [error.error_code for error in event.item_errors] == ([] if len(path) == 1 else [DENIED])
    assert event.item_failures == (len(path) > 1)


def metadata(errors: list[tuple[int, bytes]]) -> bytes:
    made = layout(3, 1, response=True)
    return encode(made, {"Topics": [{"ErrorCode": code, "Name": name} for code, name in errors]})


@pytest.mark.promise("audit-event.md", "Errors of items beyond those that an event lists are counted in it.")
def test_what_is_not_kept_is_counted() -> None:
    found = read(3, 1, metadata([(DENIED, b"t")] * 500 + [(6, b"u")] * 70 + [(79, b"v")] * 30)).item_errors
    assert (found.failures, found.retriable, found.protocol) == (500, 70, 30)
    kept = [item.error_code for item in found.items]
    assert [kept.count(code) for code in (DENIED, 6, 79)] == [MAX_KEPT_FAILURES, MAX_KEPT_STEPS, MAX_KEPT_STEPS]


def test_the_jobs_take_the_same_codes_for_steps() -> None:
    assert set(kafka_errors.RETRIABLE_ERRORS) == response_errors.RETRIABLE
    assert set(kafka_errors.PROTOCOL_ERRORS) == response_errors.PROTOCOL
    assert kafka_errors.ERROR_NAMES == ERROR_NAMES
