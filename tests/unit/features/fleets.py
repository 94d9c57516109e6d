"""Participants, and an executor that carries out what a controller wants at once."""

from proxy.features import controller_states as states
from proxy.features import records
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, LevelRange
from proxy.features.controller import FeatureController
from proxy.features.participants import Participant

BROKER_CLOCK = 1_700_000_000_000
"""The time of the brokers when that of the tests is 0."""

SUPPORTED = {AUDIT_EVENT_SCHEMA: LevelRange(1, 3), QUOTA_IP: LevelRange(1, 1)}


def sidecar(node_id: int, high: int = 3, *, low: int = 1, running: bool = True, epoch: int = -1) -> Participant:
    supported = {AUDIT_EVENT_SCHEMA: LevelRange(low, high), QUOTA_IP: LevelRange(1, 1)}
    return Participant(f"sidecar/{node_id}", "0.1.0", supported, running, epoch, BROKER_CLOCK)


def reader(name: str, high: int, *, running: bool = True) -> Participant:
    return Participant(f"reader/{name}", "", {AUDIT_EVENT_SCHEMA: LevelRange(1, high)}, running)


def finalized(level: int, low: int = 1) -> dict[str, records.FinalizedRange]:
    return {AUDIT_EVENT_SCHEMA: records.FinalizedRange(low, level), QUOTA_IP: records.FinalizedRange(1, 1)}


def to(level: int, upgrade_type: int = 1, feature: str = AUDIT_EVENT_SCHEMA) -> records.FeatureUpdate:
    return records.FeatureUpdate(feature, level, upgrade_type)


def name(number: int) -> str:
    return f"{number:032x}"


class Executor:
    """Carries out the effects of ``controller``; what it writes can be read at once.

    ``waits``: classes of effects that stay in ``waiting`` until ``go``. ``lines``: what was logged.
    """

    def __init__(self, controller: FeatureController) -> None:
        self.controller = controller
        self.now = 0
        self.waits: tuple[type[states.Effect], ...] = ()
        self.waiting: list[states.Effect] = []
        self.writes: list[states.WriteTransaction] = []
        self.lines: list[states.LogLine] = []
        self.closed = 0
        self.participants = [sidecar(1), sidecar(2)]
        controller.participants_changed(self.participants, 0)

    def do(self, effects: list[states.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, self.waits):
                self.waiting.append(effect)
            else:
                self._do(effect)

    def go(self) -> None:
        """Carry out what waits."""
        waiting, self.waiting = self.waiting, []
        for effect in waiting:
            self._do(effect)

    def _do(self, effect: states.Effect) -> None:
        controller = self.controller
        if isinstance(effect, states.FencePredecessor):
            self.do(controller.opened(effect.number, self.now))
        elif isinstance(effect, states.ReadRegistry):
            self.do(controller.barrier_passed(effect.number, self.participants, self.now))
        elif isinstance(effect, states.WriteTransaction):
            self.writes.append(effect)
            self.do(controller.written(effect.number, self.now))
            at = BROKER_CLOCK + self.now
            self.do(controller.records([(key, value, at) for key, value in effect.records.items()], self.now))
        elif isinstance(effect, states.LogLine):
            self.lines.append(effect)
        else:
            assert isinstance(effect, states.CloseProducer)
            self.waiting.clear()
            self.closed += 1

    def read(self, key: bytes, value: bytes | None, age: int = 0) -> None:
        """Let the controller read a record that was appended ``age`` milliseconds ago."""
        self.do(self.controller.records([(key, value, BROKER_CLOCK + self.now - age)], self.now))

    def put(self, key: bytes, record: records.FeaturesRecord) -> None:
        self.read(key, records.encode(record))

    def hold(self) -> None:
        self.do(self.controller.hold(self.now))

    def tick(self, later: int = 0) -> None:
        self.now += later
        self.do(self.controller.tick(self.now))

    def see(self, *participants: Participant) -> None:
        """Change the registry."""
        self.participants = list(participants)
        self.do(self.controller.participants_changed(self.participants, self.now))

    def propose(self, number: int, *updates, age: int = 0, timeout: int = 60_000, **fields) -> None:
        proposal = records.UpdateProposal(1, "boot", timeout, updates, **fields)
        self.read(records.update_key(name(number)), records.encode(proposal), age)

    def outcome(self, number: int) -> records.UpdateOutcome:
        return self.controller.topic.outcomes[name(number)].outcome

    @property
    def levels(self) -> records.FinalizedFeatures:
        assert self.controller.topic.finalized
        return self.controller.topic.finalized

    def written(self, place: int = -1) -> dict[bytes, records.FeaturesRecord | None]:
        """The records of a transaction."""
        found = self.writes[place].records
        return {key: None if value is None else records.decode(key, value) for key, value in found.items()}


def executor(low: int = 1) -> Executor:
    return Executor(FeatureController(1, "boot", supported=SUPPORTED, min_levels={AUDIT_EVENT_SCHEMA: low}))


def serving(level: int = 2, low: int = 1, minimum: int = 1) -> Executor:
    """A controller of a fleet whose levels are finalized at epoch 4."""
    one = executor(low)
    one.put(records.FEATURES_KEY, records.FinalizedFeatures(4, finalized(level, minimum)))
    one.hold()
    return one


def changing() -> Executor:
    """A controller that waits for the barrier of proposal 1."""
    one = serving()
    one.waits = (states.ReadRegistry,)
    one.propose(1, to(3))
    assert one.controller.state is states.ControllerState.CHANGING
    return one
