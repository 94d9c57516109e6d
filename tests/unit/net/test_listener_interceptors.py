"""Which address clients get for which broker, by what is configured and what is known of the fleet."""

import struct

import structlog
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, Disposition, Request, Verdict
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, LevelRange
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.broker_metadata import BrokerView, FleetDirectory, FleetView
from proxy.interceptors.update_features import UPDATE_FEATURES
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
    assert found is not None
    return found[0] + body[found[1] :]


def listener_interceptors(fleet: FleetDirectory, features: FeaturesDirectory | None = None) -> ListenerInterceptors:
    """The interceptors of the listener in ``CONFIG``."""
    (listener,) = CONFIG.listeners
    upstream = Upstream(listener.upstream, 1.0, listener.upstream_source)
    logger = RateLimitedLogger(structlog.get_logger())
    directory = features or FeaturesDirectory()
    return ListenerInterceptors(CONFIG, listener, upstream, fleet, directory, fail_update, logger)


def test_update_features_is_intercepted_while_there_are_features() -> None:
    features = FeaturesDirectory()
    interceptors = listener_interceptors(FleetDirectory(FleetView(1, ())), features)
    assert interceptors.chain.flags(UPDATE_FEATURES, 2) == 0
    features.view = FeaturesView({AUDIT_EVENT_SCHEMA: LevelRange(1, 2)})
    interceptors.apply_features_view()
    assert [interceptors.chain.flags(UPDATE_FEATURES, version) for version in range(4)] == [ON_BODY] * 3 + [0]
    features.view = FeaturesView()
    interceptors.apply_features_view()
    assert interceptors.chain.flags(UPDATE_FEATURES, 2) == 0


def test_a_broker_that_does_not_run_keeps_its_address() -> None:
    fleet = FleetDirectory(FleetView(1, ()))
    interceptors = listener_interceptors(fleet)
    sent = metadata(dict.fromkeys((1, 2, 3), ("10.0.0.1", 9092)))
    known = {1: ("kafka-1.example", 9092), 3: ("kafka-3.example", 9092)}
    assert led(interceptors, sent) == metadata(dict(sorted({**known, 2: ("node-2.unmapped.invalid", 1)}.items())))

    fleet.view = FleetView(1, (BrokerView(2, {"client": ("kafka-2.example", 9092)}, running=False),))
    interceptors.apply_fleet_view()
    assert led(interceptors, sent) == metadata(dict(sorted({**known, 2: ("kafka-2.example", 9092)}.items())))


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


def test_how_many_unsupported_requests_a_connection_may_have_answered_is_taken_over() -> None:
    (listener,) = CONFIG.listeners
    interceptors = listener_interceptors(FleetDirectory(FleetView(1, ())))
    anybody = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")

    def verdict(consecutive: int) -> Verdict:
        return interceptors.chain.on_header(Request(anybody, 30_000, 1, "c", 1, consecutive))

    assert (verdict(1000), verdict(1001)) == (b"", Disposition.CLOSE)
    interceptors.update_config(CONFIG.model_copy(update={"unsupported_request_max_consecutive": 7}), listener)
    assert (verdict(7), verdict(8)) == (b"", Disposition.CLOSE)
