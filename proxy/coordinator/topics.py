"""The topics that groups subscribe to, and which groups a change of them concerns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.coordinator.effects import WatchTopics
from proxy.coordinator.events import TopicFactsOfGroups, TopicsChanged
from proxy.coordinator.steps import Steps
from proxy.coordinator.subscription import TopicCount

MAX_NAMED_TOPICS = 100_000
"""Topics that all subscriptions of a sidecar name. Members of a group mostly have the same one, which counts once."""

MAX_WATCHED_NAMES = 1000
"""Topics that are watched by name. Beyond it all topics of the cluster are: clients may name more than there are."""


@dataclass(slots=True)
class _Subscribed:
    """A subscription of a group, and how many of its members have it."""

    text: str
    subscription: TopicCount
    members: int


class TopicIndex:
    """Topic to groups, the groups that subscribe by pattern, and the latest snapshot of the topics.

    Subscriptions are distinguished by their text, since the members of a group mostly have the same.
    """

    def __init__(self) -> None:
        self.topics: Mapping[str, TopicFactsOfGroups] = {}
        self.snapshots = 0
        """How many have been taken."""
        self._groups: dict[str, dict[str, _Subscribed]] = {}
        """By group, then by the text of the subscription."""
        self.names = 0
        """Topics that subscriptions name: those of each different one of each group."""
        self._by_name: dict[str, dict[str, int]] = {}
        """By topic: the groups that name it, each with how many of its subscriptions do."""
        self._wildcard_groups: set[str] = set()
        self._asked: dict[int, WatchTopics] = {}
        """What was asked for and is not answered yet, and the latest that is."""
        self._answered = WatchTopics(-1, frozenset(), False)
        self._latest = self._answered
        self._is_stale = False

    @property
    def wildcard_groups(self) -> frozenset[str]:
        """Groups that subscribe by pattern."""
        return frozenset(self._wildcard_groups)

    def named_topics(self) -> int:
        """How many topics are named by subscriptions."""
        return len(self._by_name)

    # Subscriptions

    def shared(self, group_id: str, text: str, subscription: TopicCount) -> tuple[str, TopicCount]:
        """Return the text and the subscription as a member of the group has them already, or else those given."""
        known = self._groups.get(group_id, {}).get(text)
        return (text, subscription) if known is None else (known.text, known.subscription)

    def has_room(self, group_id: str, text: str, subscription: TopicCount) -> bool:
        """Whether a member of the group may subscribe: it names what others of it do, or ``names`` stays in bounds."""
        known = text in self._groups.get(group_id, {})
        return known or self.names + len(subscription.named) <= MAX_NAMED_TOPICS

    def subscribe(self, group_id: str, text: str, subscription: TopicCount) -> None:
        """A member of the group subscribes."""
        texts = self._groups.setdefault(group_id, {})
        if (known := texts.get(text)) is not None:
            known.members += 1
            return
        texts[text] = _Subscribed(text, subscription, 1)
        self.names += len(subscription.named)
        if subscription.pattern is not None:
            self._is_stale |= not self._wildcard_groups
            self._wildcard_groups.add(group_id)
        for topic in subscription.named:
            if topic not in self._by_name:
                self._by_name[topic] = {}
                self._is_stale = True
            groups = self._by_name[topic]
            groups[group_id] = groups.get(group_id, 0) + 1

    def unsubscribe(self, group_id: str, text: str) -> None:
        """A member of the group with this subscription is gone."""
        known = self._groups[group_id][text]
        known.members -= 1
        if not known.members:
            self._remove(group_id, text)

    def drop(self, group_id: str) -> Steps[None]:
        """The group is not known any more."""
        for text, known in list(self._groups.get(group_id, {}).items()):
            self._remove(group_id, text)
            yield 1 + len(known.subscription.named)

    def _remove(self, group_id: str, text: str) -> None:
        texts = self._groups[group_id]
        gone = texts.pop(text).subscription
        self.names -= len(gone.named)
        if gone.pattern is not None and all(other.subscription.pattern is None for other in texts.values()):
            self._wildcard_groups.discard(group_id)
            self._is_stale |= not self._wildcard_groups
        for topic in gone.named:
            groups = self._by_name[topic]
            groups[group_id] -= 1
            if not groups[group_id]:
                del groups[group_id]
            if not groups:
                del self._by_name[topic]
                self._is_stale = True
        if not texts:
            del self._groups[group_id]

    def subscriptions(self, group_id: str) -> dict[str, TopicCount]:
        """The different subscriptions of a group's members, by their text."""
        return {text: known.subscription for text, known in self._groups.get(group_id, {}).items()}

    # Snapshots

    def take_watch(self) -> WatchTopics | None:
        """Return what is to be watched from now on; None if that has not changed since the last call."""
        if not self._is_stale:
            return None
        self._is_stale = False
        all_topics = bool(self._wildcard_groups) or len(self._by_name) > MAX_WATCHED_NAMES
        names = frozenset() if all_topics else frozenset(self._by_name)
        if (names, all_topics) == (self._latest.names, self._latest.all_topics):
            return None
        self._latest = WatchTopics(self._latest.watch + 1, names, all_topics)
        self._asked[self._latest.watch] = self._latest
        return self._latest

    @property
    def answered(self) -> WatchTopics:
        """What the latest snapshot covers."""
        return self._answered

    def are_known(self, group_id: str, answered: WatchTopics | None = None) -> bool:
        """Whether the snapshot covers all topics that the group subscribes to, those that do not exist, too.
        ``answered``: what another one covers, to ask that of it."""
        covered = self._answered if answered is None else answered
        if covered.all_topics:
            return True
        if group_id in self._wildcard_groups:
            return False
        subscribed = self._groups.get(group_id, {}).values()
        return all(known.subscription.named.keys() <= covered.names for known in subscribed)

    def changed(self, event: TopicsChanged) -> dict[str, set[str]] | None:
        """Take a snapshot. Return the topics that have changed, and the groups that each concerns; None if it is older
        than the last one.

        A change is that a topic was added, deleted, grown, or recreated: it has another id. A topic that
        was not asked for is not deleted because it is missing: the answer may be older than the subscription to it. An
        answer that comes after that to a later question says nothing any more.
        """
        if event.watch < self._answered.watch:
            return None
        before, self.topics = self.topics, event.topics
        self.snapshots += 1
        if event.watch in self._asked:
            self._answered = self._asked[event.watch]
            self._asked = {watch: asked for watch, asked in self._asked.items() if watch > event.watch}
        asked = self._answered
        changed = [
            topic
            for topic in sorted(before.keys() | event.topics.keys())
            if (topic in event.topics or asked.all_topics or topic in asked.names)
            and _identity(before.get(topic)) != _identity(event.topics.get(topic))
        ]
        groups = {topic: set(self._by_name.get(topic, ())) for topic in changed}
        for group_id in self._wildcard_groups:
            for known in self._groups[group_id].values():
                for topic in known.subscription.select(changed):
                    groups[topic].add(group_id)
        return groups

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; -1 if there is none."""
        facts = self.topics.get(topic)
        return facts.leaders[partition] if facts is not None and partition < len(facts.leaders) else -1


def _identity(facts: TopicFactsOfGroups | None) -> tuple[str, int] | None:
    """What a group must be rebalanced for, when it changes."""
    return None if facts is None else (facts.topic_id, len(facts.leaders))
