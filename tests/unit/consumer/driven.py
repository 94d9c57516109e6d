"""A membership in virtual time, with the frames of a coordinator."""

from collections.abc import Iterable
from typing import TypeVar

from proxy.client.consumer import effects as e
from proxy.client.consumer.events import ConsumerStarted, FetcherDone, FrameReceived, LinkConnected, MembershipEvent
from proxy.client.consumer.membership import ConsumerMembership
from proxy.client.consumer.settings import MembershipSettings
from proxy.config.values import Endpoint
from proxy.coordinator import wire

FIRST, SECOND = Endpoint("h", 9092), Endpoint("i", 9092)
COORDINATOR = Endpoint("k", 9092)

T = 6000
LEASE = 5700

SETTINGS = MembershipSettings((FIRST, SECOND), "g", "c1", '{"t":2}', "c", session_timeout_ms=T)

BROKERS = (wire.EndpointEntry(1, "h", 9092), wire.EndpointEntry(2, "i", 9092), wire.EndpointEntry(3, "k", 9092))

Partitions = tuple[tuple[str, int, int], ...]
"""Topic, partition, offset."""

T0_AT_42: Partitions = (("t", 0, 42),)

Kind = TypeVar("Kind")


def of(kind: type[Kind], effects: Iterable[e.MembershipEffect]) -> list[Kind]:
    return [one for one in effects if isinstance(one, kind)]


class Driven:
    """The tests set ``now``."""

    def __init__(self, settings: MembershipSettings = SETTINGS, *, fetcher_answers: bool = True) -> None:
        self.machine = ConsumerMembership(settings, lambda: 0.5)
        self.now = 0
        self.effects: list[e.MembershipEffect] = []
        """Of the last call, without those for the log, and what the fetcher's answer has brought about."""
        self.log: list[str] = []
        self.fetcher_answers = fetcher_answers
        self.assigned: tuple[e.FetchedFrom, ...] = ()
        self.link: Endpoint | None = None
        self.sent = b""
        """The last frame."""
        self._pushed = 0

    def handle(self, event: MembershipEvent) -> list[e.MembershipEffect]:
        self.effects = []
        self._handle(event)
        return self.effects

    def _handle(self, event: MembershipEvent) -> None:
        for effect in self.machine.handle(event, self.now):
            match effect:
                case e.LogMembership(_, message):
                    self.log.append(message)
                    continue
                case e.OpenLink(address):
                    assert self.link is None
                    self.link = address
                case e.CloseLink():
                    self.link = None
                case e.MembershipEnded():
                    self.link = None
                case e.SendToCoordinator(frame):
                    self.sent = frame
            self.effects.append(effect)
            if isinstance(effect, e.AssignPartitions):
                self.assigned = effect.partitions
                if self.fetcher_answers:
                    self._handle(FetcherDone(effect.command))

    def pass_time(self, milliseconds: int) -> list[e.MembershipEffect]:
        """Let time pass, with a call at each time that is due."""
        end, effects = self.now + milliseconds, []
        while (due := self.machine.due()) is not None and due <= end:
            self.now = max(due, self.now)
            effects += self.handle(None)
        self.now = end
        return effects + self.handle(None)

    def lose(self, event: MembershipEvent) -> list[e.MembershipEffect]:
        """The connection, or the attempt to connect, has ended."""
        self.link = None
        return self.handle(event)

    def receive(self, frame: bytes, heard_at: int | None = None) -> list[e.MembershipEffect]:
        """A frame comes, with its size."""
        return self.handle(FrameReceived(frame[4:], self.now if heard_at is None else heard_at))

    def respond(self, body: bytes) -> list[e.MembershipEffect]:
        """The other end answers the last request."""
        return self.receive(wire.response_frame(int.from_bytes(self.sent[8:12], "big"), body))

    def respond_coordinator(self, broker_id: int = 3, error_code: int = 0) -> list[e.MembershipEffect]:
        response = wire.ClusterMetadataResponse(error_code, broker_id, BROKERS)
        return self.respond(wire.encode_cluster_metadata_response(response))

    def respond_registered(self, error_code: int = 0) -> list[e.MembershipEffect]:
        return self.respond(wire.encode_register_consumer_response(2, wire.RegisterConsumerResponse(error_code, 3, 7)))

    def register_again(self) -> None:
        """Its connection was given up: it connects, finds its coordinator, and is registered there."""
        self.handle(LinkConnected())
        self.respond_coordinator()
        self.handle(LinkConnected())
        self.respond_registered()

    def ping(self, heard_at: int | None = None) -> list[e.MembershipEffect]:
        self._pushed += 1
        return self.receive(wire.encode_ping(self._pushed, wire.PingRequest("c1", 0)), heard_at)

    def stop(self, partitions: tuple[tuple[str, int], ...] | None = None) -> list[e.MembershipEffect]:
        self._pushed += 1
        return self.receive(wire.encode_stop_fetcher(self._pushed, wire.StopFetcherRequest("c1", partitions)))

    def start(self, *threads: Partitions) -> list[e.MembershipEffect]:
        self._pushed += 1
        assigned = tuple(
            wire.AssignedThread(f"c1-{number}", tuple(wire.ConsumedOffset(t, 1, p, offset) for t, p, offset in one))
            for number, one in enumerate(threads)
        )
        return self.receive(
            wire.encode_start_fetcher(self._pushed, wire.StartFetcherRequest("c1", assigned, BROKERS[:1]))
        )

    def hand_out(self, topic: str, partition: int, offset: int) -> bool:
        """Whether the message may be handed out; if so, it is."""
        epoch = next((one.epoch for one in self.assigned if (one.topic, one.partition) == (topic, partition)), -1)
        if not self.machine.may_hand_out(topic, partition, epoch, self.now):
            return False
        self.machine.handed_out(topic, partition, offset + 1)
        return True


def responses(effects: Iterable[e.MembershipEffect]) -> list[wire.ConsumerResponse]:
    """The responses to requests of the coordinator."""
    return [wire.decode_response(one.frame[4:]) for one in of(e.SendToCoordinator, effects)]


def seeking(settings: MembershipSettings = SETTINGS) -> Driven:
    """It has asked the first sidecar."""
    driven = Driven(settings)
    driven.handle(ConsumerStarted())
    driven.handle(LinkConnected())
    return driven


def registering(settings: MembershipSettings = SETTINGS) -> Driven:
    """It has asked its coordinator to be registered."""
    driven = seeking(settings)
    driven.respond_coordinator()
    driven.handle(LinkConnected())
    return driven


def joined(settings: MembershipSettings = SETTINGS) -> Driven:
    """It is registered."""
    driven = registering(settings)
    driven.respond_registered()
    return driven


def fetching(settings: MembershipSettings = SETTINGS) -> Driven:
    """It fetches partition 0 of t from offset 42 on, and the message of that offset is handed out."""
    driven = joined(settings)
    driven.start(T0_AT_42)
    assert driven.hand_out("t", 0, 42)
    return driven
