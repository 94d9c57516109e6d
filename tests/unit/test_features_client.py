"""FeaturesClient against peers that answer what a test says: older brokers, and connections that end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from proxy.client import FeaturesClient, FeatureUpdate, UnsupportedRequestError, UpdateResult
from proxy.features.catalog import LevelRange
from proxy.features.records import SAFE_DOWNGRADE
from proxy.fleet.connection import BrokerUnreachable
from tests import frames
from tests.unit.rpc.test_feature_messages import AUDIT, DESCRIBED, REFUSED, UPDATED

UPDATE, DESCRIBE = 57, 18
TOO_NEW = bytes.fromhex("0023 00000001 0012 0000 0003")
RAISE = FeatureUpdate(AUDIT, 2)

Answers = Mapping[tuple[int, int], bytes | None]
"""The body of the response by api key and version; None closes the connection."""


@contextmanager
def peer(answers: Answers) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Serve one connection; gives the address, and the api keys and versions of the requests."""
    asked: list[tuple[int, int]] = []

    def serve() -> None:
        accepted, _ = server.accept()
        with accepted, accepted.makefile("rb") as reader:
            while size := reader.read(4):
                frame = reader.read(int.from_bytes(size, "big"))
                asked.append((int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")))
                body = answers[asked[-1]]
                if body is None:
                    return
                accepted.sendall(frames.response(int.from_bytes(frame[4:8], "big"), body))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        thread.join()


def test_a_broker_that_does_not_know_version_4_is_asked_again() -> None:
    with (
        peer({(DESCRIBE, 4): TOO_NEW, (DESCRIBE, 3): DESCRIBED}) as (address, asked),
        FeaturesClient(address) as client,
    ):
        assert client.describe().finalized[AUDIT] == LevelRange(1, 2)
    assert asked == [(DESCRIBE, 4), (DESCRIBE, 3)]


@pytest.mark.promise(
    "features.md", "`FeaturesClient` raises UnsupportedRequestError where the broker has no UpdateFeatures version 1."
)
def test_a_broker_that_has_no_update_of_version_1_is_not_asked_for_one() -> None:
    for versions in [bytes.fromhex("0039 0000 0000"), bytes.fromhex("0038 0000 0002")]:
        described = DESCRIBED.replace(bytes.fromhex("0039 0000 0002"), versions)
        with (
            peer({(DESCRIBE, 4): described}) as (address, asked),
            FeaturesClient(address) as client,
            pytest.raises(UnsupportedRequestError, match="Request not supported by server: UpdateFeatures v1"),
        ):
            client.update([RAISE])
        assert asked == [(DESCRIBE, 4)], versions


def test_the_result_of_the_whole_is_that_of_each_feature() -> None:
    lower = FeatureUpdate("brokerside.quota.ip", 0, SAFE_DOWNGRADE)
    for answer, result in ((UPDATED, UpdateResult(0)), (REFUSED, UpdateResult(96, "wait"))):
        with (
            peer({(DESCRIBE, 4): DESCRIBED, (UPDATE, 1): answer}) as (address, _),
            FeaturesClient(address) as client,
        ):
            assert client.update([RAISE, lower]) == {AUDIT: result, lower.feature: result}


@pytest.mark.promise(
    "features.md",
    "`FeaturesClient.update` raises BrokerUnreachable for an update without an answer, which may have been made.",
)
def test_an_update_without_an_answer_may_have_been_made() -> None:
    with (
        peer({(DESCRIBE, 4): DESCRIBED, (UPDATE, 1): None}) as (address, _),
        FeaturesClient(address) as client,
        pytest.raises(BrokerUnreachable) as raised,
    ):
        client.update([RAISE])
    assert str(raised.value) == (
        f"{address}: the connection was closed; the listener may want a login; the update may have been made all the "
        "same: describe it"
    )
