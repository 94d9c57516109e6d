"""Responses whose addresses were replaced, read by two others: Kafka's own classes, and kio."""

from __future__ import annotations

import io
import json

import pytest
from kio.serial import entity_reader, entity_writer

from proxy.core.interceptor import REWRITE_STREAM
from proxy.core.struct import view
from tests.integration.test_struct_oracles import compare, compare_with_kio, defines, kio_class, reencoded
from tests.tools.addressed import all_addressed, drawn, rewriting, rewritten

EACH = 25


@pytest.mark.kafka
def test_kafkas_own_classes_read_the_same() -> None:
    """Of every version the newest release that has it: each field, and the bytes when it writes them again."""
    compared = changed = 0
    left = all_addressed()
    for kafka in ("4.4.0", "3.9.2"):
        mine = [one for one in left if defines(kafka, (*one, True))]
        left = [one for one in left if one not in mine]
        before = [drawn(number, *one) for one in mine for number in range(EACH)]
        after = [one._replace(body=rewritten(rewriting(), one)) for one in before]
        changed += sum(one.body != other.body for one, other in zip(before, after, strict=True))
        for one, line in zip(after, reencoded(kafka, after), strict=True):
            where = f"Kafka {kafka}, api key {one.key}, version {one.version}"
            assert line.startswith("{"), f"{where}: {line}"
            ours = view(one.key, one.version, one.body, response=True)
            compared += compare(ours, json.loads(line), where)
    assert left == []
    assert changed > 300
    assert compared > 3_000


def test_kio_reads_the_same() -> None:
    """Each field, and the bytes when it writes them again. Not of what streams: it refuses tagged fields that it does
    not know, and so whatever fills up such a response."""
    known = 0
    for key, version in all_addressed():
        made = kio_class((key, version, True))
        if made is None or rewriting().flags(key, version) == REWRITE_STREAM:
            continue
        for number in range(EACH):
            body = rewritten(rewriting(), drawn(number, key, version, tame=True))
            entity, size = entity_reader(made)(body, 0)
            assert size == len(body), (key, version)
            compare_with_kio(view(key, version, body, response=True), entity, str((key, version)))
            out = io.BytesIO()
            entity_writer(made)(out, entity)
            assert out.getvalue() == body, (key, version)
            known += 1
    assert known > 500
