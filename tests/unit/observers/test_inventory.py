import threading
from collections.abc import Mapping, Sequence

import pytest

from observers.cluster_events import InventoryEvent, InventoryTopic
from observers.inventory import UNCHANGED_LIST_INTERVAL, Inventory
from observers.kafka_admin import TopicDescription
from tests.unit.observers.samples import PRINTED_ID, TOPIC_ID


class World:
    """A cluster, who listens, and the time."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.published: list[Sequence[InventoryEvent]] = []
        self.now = 0.0
        self.inventory = Inventory(
            self.topics, lambda name: name == "audit", self.published.append, interval=60, clock=lambda: self.now
        )

    def topics(self) -> Mapping[str, TopicDescription]:
        return {name: TopicDescription(name, TOPIC_ID, 3, internal=name.startswith("__")) for name in self.names}


@pytest.mark.promise("audit-event.md", "The whole list of topics is reported each hour and when it has changed.")
def test_the_list_is_reported_when_it_changed_and_each_hour_but_for_excluded_topics() -> None:
    world = World("a")
    world.inventory.poll_topics()
    world.now += UNCHANGED_LIST_INTERVAL - 1
    world.inventory.poll_topics()
    assert len(world.published) == 1
    world.names = ("a", "b")
    world.inventory.poll_topics()
    assert len(world.published) == 2
    world.now += UNCHANGED_LIST_INTERVAL
    world.inventory.poll_topics()
    assert len(world.published) == 3
    # A list has what the cluster has but for excluded topics.
    world = World("b", "audit", "__consumer_offsets", "a")
    world.inventory.poll_topics()
    ((event,),) = world.published
    assert (event.part, event.parts) == (1, 1)
    assert event.inventory == (
        InventoryTopic("__consumer_offsets", PRINTED_ID, 3, internal=True),
        InventoryTopic("a", PRINTED_ID, 3),
        InventoryTopic("b", PRINTED_ID, 3),
    )
    # A list that could not be reported is reported the next time unless it is closed.
    world = World("a")
    world.inventory._publish = lambda listed: (_ for _ in ()).throw(RuntimeError)
    with pytest.raises(RuntimeError):
        world.inventory.poll_topics()
    world.inventory._publish = world.published.append
    world.inventory.poll_topics()
    assert len(world.published) == 1
    world.inventory.close()
    world.names = ("b",)
    world.inventory.poll_topics()
    assert len(world.published) == 1


def test_a_cluster_that_is_away_is_asked_again() -> None:
    answers = [RuntimeError("away"), RuntimeError("away"), {"a": TopicDescription("a", bytes(16), 1, internal=False)}]
    published = threading.Event()

    def topics() -> Mapping[str, TopicDescription]:
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def publish(listed: Sequence[InventoryEvent]) -> None:
        assert listed[0].inventory == (InventoryTopic("a", None, 1),)
        published.set()

    inventory = Inventory(topics, lambda name: False, publish, interval=0.001)
    inventory.start()
    assert published.wait(30)
    inventory.close()
    inventory._thread.join(60)  # it may log until then
