from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec
import pytest

from observers import account_events, cluster_events, event, examples
from observers.event import Envelope, RequestEvent
from observers.reference import _meanings

STRUCTS = {
    each
    for module in (event, account_events, cluster_events)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, msgspec.Struct)
}
KINDS = get_args(get_args(get_type_hints(Envelope)["events"])[0])


@pytest.mark.promise("audit-event.md", "A field that several kinds of events have is of one type.")
def test_every_field_says_what_it_means_and_is_of_one_type() -> None:
    for struct in STRUCTS:
        assert set(_meanings(struct)) == {field.name for field in msgspec.structs.fields(struct)}, struct
    hints: dict[str, set[str]] = {}
    for kind in KINDS:
        for name, hint in get_type_hints(kind).items():
            hints.setdefault(name, set()).add(str(hint))
    assert {name: kinds for name, kinds in hints.items() if len(kinds) > 1} == {}


def test_every_kind_has_an_example() -> None:
    for kind in KINDS:
        made = examples.encode_event(str(kind.__struct_config__.tag))
        assert event.encoder.encode(msgspec.json.decode(made, type=kind)) == made, kind
    envelope = msgspec.json.decode(examples.encode_envelope(), type=Envelope)
    assert [each.seq for each in envelope.events] == list(range(envelope.first_seq, envelope.last_seq + 1))
    assert isinstance(envelope.events[0], RequestEvent)


def test_buckets_of_latency_are_as_they_are_described() -> None:
    assert event.ROLLUP_BUCKETS[:5] == (64, 90, 128, 181, 256)
    assert (len(event.ROLLUP_BUCKETS), event.ROLLUP_BUCKETS[-1]) == (39, 64 * 2**19)
