"""A fleet of controllers, elections and participants under all that can happen to them: ``features_world``.

``FEATURES_DEEP=1``: 100,000 steps, others each time. Else few, the same ones each time.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, LevelRange
from proxy.features.controller_states import ControllerState
from proxy.features.records import SAFE_DOWNGRADE, FeatureUpdate
from proxy.fleet.membership import MEMBER_DEAD_AFTER_MS
from tests.property import features_invariants as invariants
from tests.property.features_world import Process, World

STEPS = 50
EXAMPLES = 2_000 if os.environ.get("FEATURES_DEEP") else 20

SEARCH = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=not os.environ.get("FEATURES_DEEP"),
    database=None,
    suppress_health_check=list(HealthCheck),
)

SIDECARS = [f"sidecar/{node_id}" for node_id in (1, 2, 3)]
READERS = {"reader/tables": True, "reader/backfill": False}
"""Whether it is durable."""

RANGES = st.sampled_from([LevelRange(1, 1), LevelRange(1, 2), LevelRange(1, 3), LevelRange(2, 3), None])
"""Of the audit's schema; None: features are not enabled."""

OUTCOMES = st.sampled_from(["done"] * 6 + ["failed", "unknown"])
READS = ["", "features", "features and registry"]
WHO = st.integers(0, 4)
UPDATES = st.lists(
    st.builds(
        FeatureUpdate,
        st.sampled_from([AUDIT_EVENT_SCHEMA, AUDIT_EVENT_SCHEMA, QUOTA_IP, "brokerside.none"]),
        st.integers(0, 3),
        st.sampled_from([1, 1, 1, 2, 3, 7]),
    ),
    min_size=1,
    max_size=2,
)


class Fleet(RuleBasedStateMachine):
    """Three sidecars and two readers, and all that can happen to them."""

    world: World

    @initialize(levels=RANGES, low=st.sampled_from([1, 1, 2]), is_new=st.sampled_from([False, False, True]))
    def begin(self, levels: LevelRange | None, low: int, is_new: bool) -> None:
        """A fleet that starts; or one in which a level is about to be raised, to which chance alone seldom leads."""
        self.world = World({AUDIT_EVENT_SCHEMA: low})
        for key in SIDECARS:
            self.start_one(key, levels if is_new else LevelRange(1, 1))
        if not is_new:
            self.world.calm(15)

    def raise_a_level(self, level: int) -> None:
        """Start all sidecars with a higher level, which is then asked for."""
        for key in SIDECARS:
            self.start_one(key, LevelRange(1, level))
        self.world.calm(4)
        self.world.propose(SIDECARS[0], [FeatureUpdate(AUDIT_EVENT_SCHEMA, level)], 60_000, False, 1)
        for one in self.awake():
            one.read_features()

    def start_one(self, key: str, levels: LevelRange | None) -> None:
        self.world.start(key, self.supported(levels), READERS.get(key, True))

    @staticmethod
    def supported(levels: LevelRange | None) -> dict[str, LevelRange]:
        return {AUDIT_EVENT_SCHEMA: levels, QUOTA_IP: LevelRange(1, 1)} if levels else {}

    def awake(self) -> list[Process]:
        return [one for one in self.world.processes.values() if not one.paused]

    @rule(
        level=st.sampled_from([3, 2]),
        key=st.sampled_from([*READERS, *SIDECARS]),
        levels=st.sampled_from([LevelRange(1, 1), LevelRange(1, 2), LevelRange(1, 3)]),
        first=st.integers(0, 6),
        second=st.integers(0, 2),
        markers=st.sampled_from([0, 3, 9]),
        registry=st.sampled_from([0, 4, 9]),
        stages=st.sampled_from([9, 9, 9, 4, 6]),
    )
    def race(
        self,
        level: int,
        key: str,
        levels: LevelRange,
        first: int,
        second: int,
        markers: int,
        registry: int,
        stages: int,
    ) -> None:
        """A level is raised while one starts: by chance alone they seldom meet.

        The stages of the controller after which the participant does the first half of its start and, by so many later,
        the second, markers are written, and the controller begins to read the registry; and how many there are.
        """
        self.raise_a_level(level)
        holding = [one for one in self.awake() if one.controller and one.controller.state is not ControllerState.AWAY]
        for stage in range(stages if holding and holding[0].key != key else 0):
            if stage == first:
                self.start_one(key, levels)
                self.world.processes[key].start_by(0)
            if stage == first + second:
                self.world.processes[key].start_by(1)
            if stage == markers:
                self.world.log.finish("open")
            if stage >= registry:
                holding[0].read_registry()
            holding[0].read_features()
            holding[0].work()
            self.holds()

    @rule(
        key=st.sampled_from(SIDECARS[1:]),
        levels=st.sampled_from([LevelRange(1, 2), LevelRange(1, 3)]),
        order=st.permutations(["succeed", "take over", "finalize"]),
    )
    def race_of_a_hot_restart(self, key: str, levels: LevelRange, order: list[str]) -> None:
        """A level is raised while a sidecar is replaced, whose predecessor does not read the new level for long."""
        self.raise_a_level(2)
        slow = self.world.processes[key]
        if slow.controller and slow.controller.state is not ControllerState.AWAY:
            return
        for what in order:
            if what == "succeed":
                self.world.succeed(key, self.supported(levels))
            elif what == "finalize":
                for one in [*self.world.processes.values(), *self.world.successors.values()] * 6:
                    if one is not slow and not one.paused:
                        self.world.run(one)
                self.world.answer()
            elif key in self.world.successors:
                self.world.take_over(key)
            self.holds()
        slow.read_features()
        self.world.calm(4)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            invariants.always(self.world)

    @rule(who=WHO, which=st.integers(0, 1), stages=st.integers(1, 6), outcome=OUTCOMES, reads=st.sampled_from(READS))
    def work(self, who: int, which: int, stages: int, outcome: str, reads: str) -> None:
        """A sidecar, if possible one that has something to do, does the next stages of it."""
        sidecars = [one for one in self.awake() if one.controller]
        busy = [one for one in sidecars if one.tasks] or sidecars
        for one in busy[who % len(busy) :][:1] if busy else []:
            for _ in range(stages):
                if "features" in reads:
                    one.read_features()
                if "registry" in reads:
                    one.read_registry()
                one.elect()
                one.work(which, outcome)

    @rule(key=st.sampled_from([*READERS, *SIDECARS]), levels=RANGES, settles=st.sampled_from([True, True, False]))
    def start(self, key: str, levels: LevelRange | None, settles: bool) -> None:
        """One starts, or starts again; with ``settles`` it is as fast as it can be."""
        self.start_one(key, levels)
        if settles:
            self.world.processes[key].start_by(0)
            self.world.processes[key].start_by(1)

    @rule()
    def markers_are_written(self) -> None:
        self.world.log.finish("open")

    @precondition(lambda self: self.awake())
    @rule(who=WHO, what=st.sampled_from(["features", "registry", "heartbeat", "all"]), limit=st.sampled_from([None, 1]))
    def step(self, who: int, what: str, limit: int | None) -> None:
        one = self.awake()[who % len(self.awake())]
        if what == "features":
            one.read_features(limit)
        elif what == "registry":
            one.read_registry(limit)
        elif what == "heartbeat":
            one.heartbeat()
        else:
            self.world.run(one)

    @rule(
        key=st.sampled_from([*SIDECARS, *READERS]), how=st.sampled_from(["crash", "stop", "pause", "resume", "forget"])
    )
    def disturb(self, key: str, how: str) -> None:
        one = self.world.processes.get(key)
        if how == "forget":
            self.world.forget(key)
        elif one is None:
            return
        elif how == "crash":
            self.world.crash(key)
        elif how == "stop" and not one.paused:
            self.world.stop(key)
        else:
            one.paused = how == "pause"

    @rule(
        key=st.sampled_from(SIDECARS),
        levels=RANGES,
        how=st.sampled_from(["succeed", "succeed", "take over", "take over", "give up", "read", "drained"]),
    )
    def restart_hot(self, key: str, levels: LevelRange | None, how: str) -> None:
        """A second run of a sidecar begins, takes over or ends; or the first one reads the levels, or has drained."""
        world = self.world
        if how == "succeed":
            world.succeed(key, self.supported(levels))
            world.run(world.successors[key])
        elif how == "take over" and key in world.successors:
            world.take_over(key)
        elif how == "give up":
            world.successors.pop(key, None)
        elif how == "read" and key in world.draining:
            world.draining[key].read_features()
        elif how == "drained":
            world.draining.pop(key, None)

    @precondition(lambda self: any(one.controller for one in self.awake()))
    @rule(who=WHO, stages=st.integers(0, 4))
    def disagree(self, who: int, stages: int) -> None:
        """A sidecar finds that it should be the controller, whatever the others find; these go on with their work."""
        sidecars = [one for one in self.awake() if one.controller]
        new = sidecars[who % len(sidecars)]
        new.hold()
        for _ in range(stages):
            new.read_features()
            new.work()
        for one in sidecars:
            one.work()

    @rule(leader=st.sampled_from([None, 1, 2, 3]))
    def move_leader(self, leader: int | None) -> None:
        self.world.leader = leader

    @rule(time=st.sampled_from([100, 1_000, 3_000, 10_000, 30_000, 600_000]))
    def advance(self, time: int) -> None:
        self.world.advance(time)
        self.world.answer()

    @precondition(lambda self: any(one.controller for one in self.awake()))
    @rule(
        who=WHO,
        updates=UPDATES,
        timeout=st.sampled_from([0, 1_000, 60_000, 60_000]),
        validate_only=st.sampled_from([False, False, False, True]),
        version=st.integers(0, 2),
    )
    def propose(self, who: int, updates: list[FeatureUpdate], timeout: int, validate_only: bool, version: int) -> None:
        sidecars = [one for one in self.awake() if one.controller]
        self.world.propose(sidecars[who % len(sidecars)].key, updates, timeout, validate_only, version)

    @rule(seconds=st.integers(3, 8))
    def kill_the_controller(self, seconds: int) -> None:
        """The others find out by a connection that is refused, and the next one takes its place."""
        self.world.calm(4)
        for one in self.awake():
            if one.controller and one.controller.claim:
                self.world.crash(one.key)
        self.world.calm(seconds)

    @rule(level=st.sampled_from([2, 3]))
    def release(self, level: int) -> None:
        self.raise_a_level(level)

    @rule()
    def calm(self) -> None:
        self.world.calm()
        sidecars = [one.controller for one in self.awake() if one.controller and one.supported]
        if sidecars:
            invariants.is_calm(sidecars)


@pytest.mark.promise(
    "features.md",
    "No sidecar uses a level that is not finalized, whatever starts, stops, hangs or is replaced meanwhile.",
)
def test_invariants_hold() -> None:
    run_state_machine_as_test(Fleet, settings=SEARCH)


@pytest.mark.promise(
    "features.md",
    "A killed controller is replaced before nine seconds of silence, and an update waits for the others alone.",
)
def test_a_killed_controller_is_replaced_before_its_silence_shows_it() -> None:
    """And an update that comes then waits for the others alone."""
    world = World()
    for key in SIDECARS:
        world.start(key, {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)})
    world.calm(20)
    [killed] = [key for key, one in world.processes.items() if one.controller and one.controller.claim]
    world.crash(killed)
    asker = next(iter(world.processes))
    world.propose(asker, [FeatureUpdate(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)], 60_000, False, 1)
    killed_at = world.now

    world.calm(MEMBER_DEAD_AFTER_MS // 1_000 - 2)

    seen = world.processes[asker].registry.content().seen
    assert max(seen.values()) - seen[killed] < MEMBER_DEAD_AFTER_MS, "its silence does not show it yet"
    assert world.now < killed_at + MEMBER_DEAD_AFTER_MS
    assert not world.requests, "the update is in force"
    assert world.history.finalized
    assert world.history.finalized.features[AUDIT_EVENT_SCHEMA].max_version_level == 1
