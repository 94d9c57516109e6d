"""What goes wrong in a schedule. Each fault ends by itself, or when all of them are healed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.tools.simulation.consumer import Consumer
    from tests.tools.simulation.sidecar import Sidecar
    from tests.tools.simulation.world import World

Fault = Callable[["World"], None]

FOR_EVER = 10**9


def plan(world: World) -> int:
    """Set some faults. Return when the last one is over, at the latest."""
    random = world.random
    at = random.randrange(1000, 9000)
    for _ in range(random.choice((2, 4, 6, 8, 12, 16))):
        fault = random.choice(world.faults)
        world.timeline.at(at, lambda fault=fault: fault(world))  # type: ignore[misc]
        at += random.choice((10, 200, 1000, 3000, 6000, 10_000))
    return at + random.choice((100, 3000, 10_000))


def some_time(world: World) -> int:
    return world.random.choice((50, 500, 2000, 4000, 7000, 12_000, 20_000))


def a_coordinator(world: World) -> Sidecar:
    """Preferably one that has something to do."""
    return world.random.choice([one for one in world.sidecars if one.is_running and one.own] or world.sidecars)


def a_consumer(world: World) -> Consumer:
    return world.random.choice(world.consumers)


def kill(world: World, one: Sidecar | Consumer) -> None:
    """The process, or its machine with it; it is started again later."""
    powered = world.random.random() < 0.7
    if one.is_running:
        one.kill(powered=powered)
        world.timeline.after(some_time(world), lambda: None if one.is_running else one.start())


def stop(world: World, one: Sidecar | Consumer) -> None:
    """The process, by SIGSTOP; it goes on later."""
    world.note(one.name, "is stopped")
    one.stop()

    def go_on() -> None:
        if one.is_stopped:
            world.note(one.name, "goes on")
            one.go_on()

    world.timeline.after(some_time(world), go_on)


# Sidecars


def kill_sidecar(world: World) -> None:
    kill(world, a_coordinator(world))


def stop_sidecar(world: World) -> None:
    stop(world, a_coordinator(world))


def shut_sidecar_down(world: World) -> None:
    one = a_coordinator(world)
    if one.is_running and not one.is_stopped:
        one.shut_down()
        world.timeline.after(2000 + some_time(world), lambda: None if one.is_running else one.start())


def evacuate(world: World) -> None:
    one = a_coordinator(world)
    if one.is_running and not one.is_stopped:
        world.note(one.name, "is evacuated")
        one.evacuate()
        world.timeline.after(some_time(world), lambda: one.come_back() if one.is_running else None)


def cut_sidecar_off_from_kafka(world: World) -> None:
    one, time = a_coordinator(world), some_time(world)
    world.note(one.name, "does not reach Kafka for %d ms", time)
    world.kafka.unreachable_until[one.name] = world.timeline.now + time


def move_leader(world: World) -> None:
    number, leader = world.random.randrange(world.partitions), 1 + world.random.randrange(len(world.sidecars))
    world.note("kafka", "partition %d is led by %d", number, leader)
    world.kafka.leaders[number] = leader


def take_over(world: World) -> None:
    """A sidecar takes a partition that another one holds, and that one does not know it yet."""
    number = world.random.randrange(world.partitions)
    others = [one for one in world.sidecars if one.is_running and not one.is_stopped and number not in one.own]
    if others:
        one = world.random.choice(others)
        world.note(one.name, "takes partition %d, whoever has it", number)
        one.take(number)


# Consumers


def kill_consumer(world: World) -> None:
    kill(world, a_consumer(world))


def stop_consumer(world: World) -> None:
    stop(world, a_consumer(world))


def leave(world: World) -> None:
    one = a_consumer(world)
    if one.is_running and not one.is_stopped and not one.has_ended:
        world.note(one.name, "leaves")
        one.leave()

        def come_back() -> None:
            one.starts_again = True
            if not one.is_running:
                one.start()

        if world.random.random() < 0.7:
            world.timeline.after(some_time(world), come_back)


def subscribe(world: World) -> None:
    from tests.tools.simulation.world import SUBSCRIPTIONS

    one = a_consumer(world)
    if one.is_running and not one.is_stopped and not one.has_ended:
        topics = world.random.choice(SUBSCRIPTIONS)
        world.note(one.name, "subscribes to %s", topics)
        one.subscribe(topics)


def fetcher_hangs(world: World) -> None:
    one = a_consumer(world)
    time = world.random.choice((some_time(world), some_time(world), FOR_EVER))
    world.note(one.name, "its fetcher hangs for %d ms", time)
    one.hangs_until = max(one.hangs_until, world.timeline.now + time)


def fetcher_fails(world: World) -> None:
    one = a_consumer(world)
    world.note(one.name, "its fetcher fails")
    one.fails = True
    world.timeline.after(some_time(world), lambda: setattr(one, "fails", False))


def revoke(world: World) -> None:
    one, topic = a_consumer(world), world.random.choice(("", "t1", "t2"))
    client_id = one.settings.client_id
    world.note(one.name, "may not read %s any more", topic or "its group")
    world.denied.add((client_id, topic))

    def report() -> None:
        for sidecar in world.sidecars:
            if sidecar.is_running:
                sidecar.later(world.random.randrange(3000), -4, lambda one=sidecar: one.change_rights(client_id))

    def allow() -> None:
        world.denied.discard((client_id, topic))
        report()

    report()
    world.timeline.after(some_time(world), allow)


# The network


def lose(world: World) -> None:
    """Nothing arrives between a consumer and a sidecar, in one direction or in both."""
    one, other, until = a_consumer(world), a_coordinator(world), world.timeline.now + some_time(world)
    pairs = world.random.choice(
        ([(one.name, other.name)], [(other.name, one.name)], [(one.name, other.name), (other.name, one.name)])
    )
    for pair in pairs:
        world.note("network", "nothing arrives from %s at %s until %d", *pair, until)
        world.network.lost_until[pair] = until


def flap(world: World) -> None:
    """A path loses what is sent over it again and again, in each direction by itself."""
    one, other, until = a_consumer(world), a_coordinator(world), world.timeline.now + some_time(world)
    world.note("network", "flaps between %s and %s until %d", one.name, other.name, until)

    def lose_for_a_while(world: World, pair: tuple[str, str]) -> None:
        now = world.timeline.now
        if now < until:
            time = world.random.randrange(100, 2000)
            world.network.lost_until[pair] = now + time
            world.later(time + world.random.randrange(10, 1000), lambda world: lose_for_a_while(world, pair))

    lose_for_a_while(world, (one.name, other.name))
    lose_for_a_while(world, (other.name, one.name))


def cut_connection(world: World) -> None:
    """A connection loses all that is sent over it, for ever: in one direction, or in both."""
    if (socket := world.a_link()) is not None:
        for end in world.random.choice(((socket,), (socket.peer,), (socket, socket.peer))):
            world.note(
                "network", "nothing arrives from %s at %s over this connection", end.process.name, end.peer.process.name
            )
            end.lost_until = FOR_EVER


def reset(world: World) -> None:
    """A middlebox resets a connection, at one end or at both."""
    if (socket := world.a_link()) is not None:
        for end in world.random.choice(((socket,), (socket.peer,), (socket, socket.peer))):
            world.note("network", "resets the connection of %s with %s", end.process.name, end.peer.process.name)
            end.reset_by_network()


# Some at once


def freeze_and_cut_off(world: World) -> None:
    """A consumer is stopped for less than its lease, and what it sends afterwards is lost."""
    one, now = a_consumer(world), world.timeline.now
    world.note(one.name, "is stopped, and cut off")
    one.stop()
    world.timeline.after(int(one.settings.session_timeout_ms * world.random.uniform(0.5, 0.9)), one.go_on)
    both = world.random.random() < 0.3
    for other in world.sidecars:
        world.network.lost_until[one.name, other.name] = now + 20_000
        if both:
            world.network.lost_until[other.name, one.name] = now + 20_000


def split(world: World) -> None:
    """A coordinator does not reach Kafka, one of its consumers does not reach it, and another sidecar takes over."""
    one, number = a_coordinator(world), world.random.randrange(world.partitions)
    others = [other for other in world.sidecars if other is not one and other.is_running and not other.is_stopped]
    if not others or number not in one.own:
        return
    world.note(one.name, "does not reach Kafka for 20 s")
    world.kafka.unreachable_until[one.name] = world.timeline.now + 20_000
    consumer, other = a_consumer(world), world.random.choice(others)
    for pair in ((one.name, consumer.name), (consumer.name, one.name)):
        world.network.lost_until[pair] = world.timeline.now + 20_000
    if consumer.is_running and consumer.socket is not None:
        consumer.socket.reset_by_network()

    def take(world: World) -> None:
        if other.is_running and not other.is_stopped and number not in other.own:
            world.note(other.name, "takes partition %d, whoever has it", number)
            other.take(number)

    world.later(world.random.choice((10, 1000, 3000)), take)


def in_a_rebalance(world: World) -> None:
    """A topic changes, and something goes wrong while its groups are rebalanced for it."""
    moment, fault = world.random.choice(("stop", "commit", "start")), world.random.choice(IN_A_REBALANCE)
    world.note("world", "%s is awaited for %s", moment, fault.__name__)
    world.at_next(moment, fault)
    change_topics(world)


def hang_and_end(world: World) -> None:
    """A consumer registers anew, does not answer StartFetcher, and ends when the attempt has failed for that."""
    one = a_consumer(world)
    if not one.is_running or one.is_stopped:
        return
    one.kill(powered=True)
    one.start()
    world.note(one.name, "hangs from its start")
    one.hangs_until = max(one.hangs_until, world.timeline.now + 20_000)
    timeout = one.settings.session_timeout_ms * 2 // 3

    def end() -> None:
        one.hangs_until = 0
        if one.is_running:
            one.kill(powered=True)
            world.timeline.after(some_time(world), lambda: None if one.is_running else one.start())

    world.timeline.after(timeout + world.random.randrange(2500), end)


def commit_is_late(world: World) -> None:
    """Whether a generation is committed is not known for a while, and a member goes meanwhile."""

    def fault(world: World) -> None:
        one = a_coordinator(world)
        world.note(one.name, "does not reach Kafka for a while")
        world.kafka.unreachable_until[one.name] = world.timeline.now + world.random.choice((500, 1500, 4000))
        kill_consumer(world)

    world.at_next("commit", fault)
    change_topics(world)


# Topics and settings


def change_topics(world: World) -> None:
    kafka, name = world.kafka, world.random.choice(("t1", "t2", "t3"))
    if name not in kafka.topics:
        world.note("kafka", "%s is created", name)
        kafka.create(name, world.random.choice((1, 2, 4)), len(world.sidecars))
        return
    match world.random.choice(("grow", "grow", "delete", "recreate", "retention")):
        case "grow":
            kafka.grow(name)
        case "delete":
            kafka.delete(name)
        case "recreate":
            kafka.delete(name)
            kafka.create(name, world.random.choice((1, 2, 4)), len(world.sidecars))
        case "retention":
            topic = kafka.topics[name]
            topic.starts = [topic.end(world.timeline.now) for _ in topic.starts]
    world.note("kafka", "%s is now %s", name, kafka.topics.get(name))


def freeze(world: World) -> None:
    group = a_consumer(world).settings.group_id
    world.note("world", "%s is frozen", group)
    world.apply(world.settings._replace(frozen_groups=world.settings.frozen_groups | {group}))

    def thaw() -> None:
        world.note("world", "%s is thawed", group)
        world.apply(world.settings._replace(frozen_groups=world.settings.frozen_groups - {group}))

    world.timeline.after(some_time(world), thaw)


def change_level(world: World) -> None:
    level = 3 - world.settings.level
    world.note("world", "level %d is finalized", level)
    world.apply(world.settings._replace(level=level))


def ordinary_members(world: World) -> None:
    group = a_consumer(world).settings.group_id
    world.note("kafka", "%s has ordinary members", group)
    world.kafka.ordinary_since.setdefault(group, world.timeline.now)
    world.timeline.after(some_time(world), lambda: world.kafka.ordinary_since.pop(group, None))


IN_A_REBALANCE: tuple[Fault, ...] = (
    kill_sidecar, stop_sidecar, cut_sidecar_off_from_kafka, take_over, kill_consumer, stop_consumer, leave, subscribe,
    fetcher_hangs, lose, reset, change_topics, freeze,
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (
    kill_sidecar, kill_sidecar, stop_sidecar, stop_sidecar, shut_sidecar_down, evacuate, cut_sidecar_off_from_kafka,
    cut_sidecar_off_from_kafka, move_leader, take_over, take_over, kill_consumer, kill_consumer, stop_consumer,
    stop_consumer, leave, subscribe, fetcher_hangs, fetcher_fails, revoke, lose, lose, flap, flap, cut_connection,
    reset, reset, freeze_and_cut_off, split, split, in_a_rebalance, in_a_rebalance, in_a_rebalance, commit_is_late,
    hang_and_end, change_topics, change_topics, freeze, change_level, ordinary_members,
)  # fmt: skip
