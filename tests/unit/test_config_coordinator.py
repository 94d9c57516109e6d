"""Keys of the coordinator of groups: what they may be, and what is said where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config import Config, load
from proxy.config.difference import differences
from proxy.config.keys import reloadable
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError, LocalError
from proxy.start_checks import check_consumers

BASE = """\
broker.id: 1
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
"""
CLUSTER = f"{BASE}internal.bootstrap.servers: 127.0.0.1:19094\n"


@pytest.fixture
def config(tmp_path: Path):
    """Load a text."""

    def config(text: str) -> Config:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text)
        return load(path, {})

    return config


@pytest.mark.promise("coordinator.md", "No group is coordinated by a sidecar unless its configuration enables it.")
def test_all_keys_are_read_and_nothing_is_coordinated_by_default(config) -> None:
    found = config(CLUSTER).coordinator
    assert not found.enabled
    assert (found.partitions, found.max_consumers, found.groups) == (12, 10_000, {})

    text = f"""{CLUSTER}coordinator:
  enabled: true
  partitions: 3
  min.session.timeout.ms: 2000
  max.ping.retries: 3
  max.rebalance.retries: 0
  rebalance.backoff.ms: 0
  rebalance.delay.ms: 0
  rebalance.threadpool.size: 1
  offset.commit.interval.ms: 1000
  state.write.timeout.ms: 2000
  max.consumers: 7
  groups: {{"a.b/c": {{rebalance.enabled: false}}, other: {{}}}}
"""
    found = config(text).coordinator
    assert found.enabled
    assert (found.partitions, found.min_session_timeout_ms, found.max_ping_retries) == (3, 2000, 3)
    assert (found.max_rebalance_retries, found.rebalance_backoff_ms, found.rebalance_delay_ms) == (0, 0, 0)
    assert (found.rebalance_threadpool_size, found.offset_commit_interval_ms) == (1, 1000)
    assert (found.state_write_timeout_ms, found.max_consumers) == (2000, 7)
    assert {name: group.rebalance_enabled for name, group in found.groups.items()} == {"a.b/c": False, "other": True}
    assert unpack(pack(config(text))) == config(text)


WRONG = [
    ("partitions: 129", "partitions: 129 is out of range (allowed: 1–128 partitions)"),
    ("min.session.timeout.ms: 1999", "min.session.timeout.ms: 1999 is out of range (allowed: 2000–600000 ms)"),
    ("rebalance.backoff.ms: 60001", "rebalance.backoff.ms: 60001 is out of range (allowed: 0–60000 ms)"),
    ("rebalance.delay.ms: '1'", "rebalance.delay.ms: '1' is not a whole number (allowed: 0–10000 ms)"),
    ("enabled: 1", "enabled: 1 is not true or false (allowed: true or false)"),
    ("min.session.timeout: 1", "min.session.timeout: unknown key (did you mean min.session.timeout.ms?)"),
    ("groups: {g: {rebalance.enabled: 0}}", "groups.g.rebalance.enabled: 0 is not true or false (allowed: true"),
    (
        "groups: {'': {}}",
        "groups.: '' is no group's id (allowed: ids of groups (1 to 255 characters of printable ASCII",
    ),
    (f"groups: {{{'g' * 256}: {{}}}}", "is no group's id"),
    ("groups: {g: {rebalance: false}}", "groups.g.rebalance: unknown key (did you mean rebalance.enabled?)"),
]


@pytest.mark.promise("config.md", "A mistake in the coordinator's keys is named with what is allowed, and refused.")
def test_what_is_wrong_is_named_with_what_is_allowed(config) -> None:
    for line, problem in WRONG:
        with pytest.raises(ConfigError) as raised:
            print(line, config(f"{CLUSTER}coordinator: {{{line}}}\n"))
        (found,) = raised.value.problems
        assert found.startswith("coordinator."), line
        assert problem in found, line
    for text, reason in (
        (BASE, "needs internal.bootstrap.servers, which is missing (allowed: false, or both)"),
        (f"{CLUSTER}features: {{enabled: false}}\n", "needs features.enabled, which is false (allowed: false, or both"),
    ):
        with pytest.raises(ConfigError) as raised:
            print(text, config(f"{text}coordinator: {{enabled: true}}\n"))
        (found,) = raised.value.problems
        assert found.startswith(f"coordinator.enabled: true {reason}")
        assert config(f"{text}coordinator: {{enabled: false}}\n"), "nothing is needed for nothing"


def test_a_running_sidecar_takes_over_other_settings_of_groups(config) -> None:
    text = f"{CLUSTER}coordinator: {{rebalance.delay.ms: 1, groups: {{a: {{rebalance.enabled: false}}}}}}\n"
    changed = [one.path for one in differences(config(CLUSTER), config(text))]

    assert changed == [("coordinator", "rebalance.delay.ms"), ("coordinator", "groups", "a", "rebalance.enabled")]
    assert all(map(reloadable, changed))
    fixed = ("enabled", "partitions", "rebalance.threadpool.size", "state.write.timeout.ms")
    assert not any(reloadable(("coordinator", name)) for name in fixed)


@pytest.mark.promise("config/coordinator.md", "More consumers than a third of the descriptors are refused.")
def test_consumers_beyond_a_third_of_the_descriptors_are_refused(config) -> None:
    section = "coordinator: {enabled: true, max.consumers: 100}\n"
    check_consumers(config(CLUSTER + section), 300)
    check_consumers(config(CLUSTER + section.replace("true", "false")), 3)
    said = (
        r"coordinator\.max\.consumers: 100 needs RLIMIT_NOFILE 300 \(ulimit -n\), which is 299 \(allowed: up to 99 co"
    )
    with pytest.raises(LocalError, match=said):
        check_consumers(config(CLUSTER + section), 299)
