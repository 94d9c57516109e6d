"""Which address clients get for which broker, by what is configured and what is known of the fleet."""

import struct

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.coordinator.view import GroupsDirectory, GroupsView
from proxy.coordinator.wire import RegisterConsumerRequest, encode_register_consumer_request
from proxy.core.exchange import Connection
from proxy.core.interceptor import Request
from proxy.features.view import FeaturesDirectory
from proxy.interceptors.broker_metadata import BrokerView, FleetDirectory, FleetView
from proxy.net.feature_update_calls import fail_update
from proxy.net.listener_interceptors import ListenerInterceptors
from proxy.net.upstream import Upstream
from proxy.telemetry import RateLimitedLogger

METADATA = 3
CONFIG = Config.model_validate(
    {
        "broker.id": 1,
        "listeners": [
            {
                "name": "CLIENT",
                "bind": "127.0.0.1:9092",
                "advertised": "kafka-1.example:9092",
                "upstream": "127.0.0.1:19092",
                "rewrite.addresses": True,
                "rewrite.addresses.map": {"3": "kafka-3.example:9092"},
            }
        ],
    }
)


def metadata(brokers: dict[int, tuple[str, int]]) -> bytes:
    """A Metadata response of version 0, without topics."""
    listed = [
        struct.pack(f">ih{len(host)}si", node_id, len(host), host.encode(), port)
        for node_id, (host, port) in brokers.items()
    ]
    return struct.pack(">i", len(listed)) + b"".join(listed) + struct.pack(">i", 0)


def led(interceptors: ListenerInterceptors, body: bytes) -> bytes:
    """What becomes of the Metadata response ``body``."""
    found = interceptors.chain.rewrite_prefix(METADATA, 0, body, True)
    return found[0] + body[found[1] :]


def listener_interceptors(fleet: FleetDirectory, config: Config = CONFIG) -> ListenerInterceptors:
    """The interceptors of the listener in ``config``."""
    (listener,) = config.listeners
    upstream = Upstream(listener.upstream, 1.0, listener.upstream_source)
    logger = RateLimitedLogger(structlog.get_logger())
    groups = GroupsDirectory()
    groups.view = GroupsView(1, {0: 1}, frozenset({0}), 1)
    return ListenerInterceptors(config, listener, upstream, fleet, FeaturesDirectory(), groups, fail_update, logger)


@pytest.mark.promise("addresses.md", "The sidecar logs the id of a node without a known address (`address_unmapped`).")
def test_a_broker_that_does_not_run_keeps_its_address() -> None:
    fleet = FleetDirectory(FleetView(1, ()))
    interceptors = listener_interceptors(fleet)
    sent = metadata(dict.fromkeys((1, 2, 3), ("10.0.0.1", 9092)))
    known = {1: ("kafka-1.example", 9092), 3: ("kafka-3.example", 9092)}
    with capture_logs() as logged:
        assert led(interceptors, sent) == metadata(dict(sorted({**known, 2: ("node-2.unmapped.invalid", 1)}.items())))
    assert [(line["event"], line["listener"], line["node_id"]) for line in logged] == [
        ("address_unmapped", "CLIENT", 2)
    ]
    fleet.view = FleetView(1, (BrokerView(2, {"client": ("kafka-2.example", 9092)}, running=False),))
    interceptors.apply_fleet_view()
    assert led(interceptors, sent) == metadata(dict(sorted({**known, 2: ("kafka-2.example", 9092)}.items())))


@pytest.mark.promise(
    "addresses.md", "An address in `rewrite.addresses.map` goes before one that a sidecar has registered."
)
def test_what_is_configured_goes_before_what_is_written_and_a_change_of_that_is_logged() -> None:
    """Whoever may write the registry cannot send clients elsewhere where the operator has said where to."""
    fleet = FleetDirectory(FleetView(1, (BrokerView(2, {"client": ("kafka-2.example", 9092)}),)))
    interceptors = listener_interceptors(fleet)
    sent = metadata(dict.fromkeys((2, 3), ("10.0.0.1", 9092)))
    spoofed = {"client": ("attacker.example", 9)}
    with capture_logs() as logged:
        fleet.view = FleetView(1, (BrokerView(2, spoofed), BrokerView(3, spoofed)))
        interceptors.apply_fleet_view()
    edited = led(interceptors, sent)
    assert edited == metadata({2: ("attacker.example", 9), 3: ("kafka-3.example", 9092)})
    (line,) = logged
    assert (line["event"], line["node_id"]) == ("registry_address_changed", 2)
    assert (line["before"], line["address"]) == ("kafka-2.example:9092", "attacker.example:9")


# ---- the coordinator of consumer groups -----------------------------------------------------------------------------

COORDINATING = Config.model_validate(
    CONFIG.model_dump(by_alias=True) | {"coordinator": {"enabled": True}, "internal.bootstrap.servers": "127.0.0.1:1"}
)
CLIENT = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")


def test_where_a_side_has_tls_there_is_no_coordinator() -> None:
    for side in ["tls", "upstream_tls"]:
        (listener,) = COORDINATING.listeners
        config = COORDINATING.model_copy(update={"listeners": (listener.model_copy(update={side: object()}),)})
        interceptors = listener_interceptors(FleetDirectory(FleetView(1, ())), config=config)
        body = encode_register_consumer_request(
            1, RegisterConsumerRequest("g", "c1", '{"t":1}', True, "smallest", 6000)
        )
        found = interceptors.chain.on_body(Request(CLIENT, 30_002, 1, "c", 1, 0), body)
        assert found == struct.pack(">hii", 15, -1, -1), side
