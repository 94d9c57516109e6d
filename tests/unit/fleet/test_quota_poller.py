"""What the poller reports, stores and logs, before a cluster made of bytes; each poll is asked for by a refresh."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.fleet import host_resolver, quota_poller, schedule
from proxy.fleet.quota_poller import QuotaPoller
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas
from proxy.rpc import messages
from tests.unit.fleet.cluster import Cluster, eventually


def config_of(quotas: dict[str, Any], source: str | None = None, **more: Any) -> Config:
    listener = {"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2", "upstream.source": source}
    values = {"broker.id": 1, "internal.bootstrap.servers": "127.0.0.1:3", "listeners": [listener], "quotas": quotas}
    return Config.model_validate(values | more)


class Counted(QuotaPoller):
    """Counts its polls. One poll begins after the other has ended."""

    begun = 0
    ended = 0

    async def _attempt(self) -> str | None:
        self.begun += 1
        return await super()._attempt()

    def _report(self, error: str | None) -> None:
        super()._report(error)
        self.ended += 1


class Watched:
    """A running watch, and what came of it."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self.cluster = cluster
        self.changes: list[ClusterQuotas] = []
        self.problems: list[str | None] = []
        self.watch = Counted(config, self.changes.append, self.problems.append, caller=cluster)

    async def look(self) -> None:
        """Wait for the end of a poll that begins from now on: one that runs may have read what was before."""
        begun = self.watch.begun
        self.watch.refresh()
        await eventually(lambda: self.watch.ended > begun)


@asynccontextmanager
async def watching(cluster: Cluster, config: Config | None = None) -> AsyncIterator[Watched]:
    watched = Watched(cluster, config or config_of({}))
    watched.watch.start()
    try:
        await eventually(lambda: watched.watch.ended > 0)
        yield watched
    finally:
        await watched.watch.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh is a poll, however soon after the last one. A poll has the names of quotas, however late they come."""
    monkeypatch.setattr(schedule, "MIN_POLL_INTERVAL", 0.0)
    monkeypatch.setattr(host_resolver, "RESOLVE_TIMEOUT", 60.0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.promise("limits.md", "Each change of the rates that the cluster stores is followed.")
async def test_quotas_are_reported_once_and_again_when_they_change(cluster: Cluster) -> None:
    async with watching(cluster) as watched:
        await watched.look()
        assert (watched.changes, watched.problems) == ([], [])
        assert (watched.watch.state.ok, watched.watch.state.error) == (True, None)
        cluster.stored = {"10.0.0.1": 5.0, "0:0:0::7": 6.0}
        for _ in range(2):
            await watched.look()
        cluster.stored["10.0.0.1"] = 7.0
        await watched.look()
        watched.watch.reconfigure(config_of({"ip.store": "file"}))
        await eventually(lambda: len(watched.changes) == 3)
    assert [change.ip_rates for change in watched.changes] == [{"10.0.0.1": 5, "::7": 6}, {"10.0.0.1": 7, "::7": 6}, {}]


@pytest.mark.promise("limits.md", "While the cluster cannot be asked, the last known rates of addresses stay.")
async def test_what_is_known_stays_while_the_cluster_does_not_answer(cluster: Cluster) -> None:
    cluster.stored = {"10.0.0.1": 5.0}
    with capture_logs() as logs:
        async with watching(cluster) as watched:
            cluster.down = True
            for _ in range(2):
                await watched.look()
            assert (watched.watch.state.ok, watched.watch.state.error) == (False, "127.0.0.1:1: Connection refused")
            cluster.down = False
            await watched.look()
            cluster.refused = {messages.DESCRIBE_CLIENT_QUOTAS: 31}
            await watched.look()
            assert "DescribeConfigs" in (watched.watch.state.error or "")
    assert [change.ip_rates for change in watched.changes] == [{"10.0.0.1": 5}]
    assert watched.problems == []
    assert [line["event"] for line in logs if line["event"].startswith("quota_source")][:2] == [
        "quota_source_unreachable",
        "quota_source_back",
    ]


@pytest.mark.promise(
    "limits.md",
    "The sidecar stores an override without a limit for each address it dials the broker from, once after its start.",
)
async def test_the_sidecar_s_own_address_is_kept_off_a_default_quota(cluster: Cluster) -> None:
    async with watching(cluster) as watched:
        assert cluster.stored == {"127.0.0.1": UNLIMITED}, "for a default that may come"
        cluster.stored.clear()  # an operator's tidying up
        await watched.look()
        assert cluster.stored == {}
        cluster.stored = {None: 5.0}
        await watched.look()
        await watched.look()
        assert cluster.stored == {None: 5.0, "127.0.0.1": UNLIMITED}
        assert cluster.asked.count(messages.ALTER_CLIENT_QUOTAS) == 2
        watched.watch.reconfigure(config_of({}, "127.0.0.99"))
        await watched.look()
        assert cluster.stored["127.0.0.99"] == UNLIMITED
    assert watched.changes[0].ip_rates == {DEFAULT_ADDRESS: 5}
    assert watched.problems == []
    cluster.stored = {None: 5.0}
    async with watching(cluster, config_of({"ip.store": "file"})) as watched:
        assert cluster.stored["127.0.0.1"] == UNLIMITED, "also where the file alone counts"
    assert watched.changes == []
    cluster.asked.clear()
    async with watching(cluster, config_of({"protect.upstream": False})) as watched:
        await watched.look()
    assert messages.ALTER_CLIENT_QUOTAS not in cluster.asked
    assert watched.changes[0].ip_rates == {DEFAULT_ADDRESS: 5, "127.0.0.1": UNLIMITED}


async def test_what_could_not_be_provided_is_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each poll, without the right to it only once a minute; it is reported once."""
    for code, pause in ((7, 60.0), (31, 60.0), (31, 0.0)):
        monkeypatch.setattr(quota_poller, "UNAUTHORIZED_RETRY", pause)
        cluster.stored.clear()
        cluster.asked.clear()
        cluster.refused = {messages.ALTER_CLIENT_QUOTAS: code}
        once = (code, pause) == (31, 60.0)
        with capture_logs() as logs:
            async with watching(cluster) as watched:
                for _ in range(3):
                    await watched.look()
                least, most = (1, 1) if once else (watched.watch.ended, watched.watch.begun)
                assert least <= cluster.asked.count(messages.ALTER_CLIENT_QUOTAS) <= most, (code, pause)
                cluster.refused.clear()
                await watched.look()
                assert (cluster.stored == {"127.0.0.1": UNLIMITED}) != once, (code, pause)
        assert watched.problems == [], (code, pause)
        warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
        assert warnings == ["upstream_not_protected"], (code, pause)


@pytest.mark.promise(
    "limits.md",
    "A sidecar that the cluster's own quotas would limit is not ready, and says why; one that accepts stays ready.",
)
async def test_a_sidecar_that_cannot_protect_itself_does_not_become_ready(cluster: Cluster) -> None:
    cluster.stored = {None: 5.0}
    cluster.refused = {messages.ALTER_CLIENT_QUOTAS: 31}
    async with watching(cluster) as watched:
        assert len(watched.problems) == 1
        assert "127.0.0.1 cannot be stored" in (watched.problems[0] or "")
        cluster.refused.clear()
        await watched.look()
        assert watched.problems[1:] == [None]
    cluster.stored = {"127.0.0.1": 3.0}
    async with watching(cluster) as watched:
        watched.watch.mark_accepting()  # though it is not ready
        assert len(watched.problems) == 1
        cluster.stored.clear()
        await watched.look()
    assert watched.problems[1:] == [None]
    cluster.stored = {"127.0.0.1": 3.0, None: 5.0}
    async with watching(cluster, config_of({}, "127.0.0.99")) as watched:
        assert cluster.stored["127.0.0.99"] == UNLIMITED, "an address of its own is the way out"
    assert watched.problems == []
    cluster.down = True
    async with watching(cluster) as watched:
        watched.watch.mark_accepting()
        cluster.down = False
        await watched.look()
        assert "upstream.source" in (watched.watch.state.problem or "")
        cluster.stored.clear()
        await watched.look()
        assert (watched.watch.state.problem, cluster.stored) == (None, {})
    assert watched.problems == []


@pytest.mark.promise(
    "limits.md",
    "While the broker itself does not answer, what was known of its configuration stays, "
    "and `brokerside quotas` says so.",
)
async def test_rates_of_the_broker_are_taken_over_where_they_are_asked_for(cluster: Cluster) -> None:
    key = "max.connection.creation.rate"
    for source, rate, listener in (("file", None, {}), ("min", 20, {"client": 5}), ("broker", 20, {"client": 5})):
        cluster.stored = {"10.0.0.1": 5.0}
        cluster.configs = {key: "20", f"listener.name.client.{key}": "5"}
        with capture_logs() as logs:
            async with watching(cluster, config_of({"source": source})) as watched:
                assert watched.changes == [ClusterQuotas({"10.0.0.1": 5}, rate, listener)], source
                cluster.away_reason = "broker 1 does not answer"
                cluster.configs.clear()
                for _ in range(2):
                    await watched.look()
                says = "broker 1 does not answer" in (watched.watch.state.problem or "")
                assert says == (source != "file"), "who is not asked need not be at home"
                cluster.away_reason = None
                for _ in range(2):  # the first may have begun before
                    await watched.look()
                assert watched.watch.state.problem is None, source
                assert watched.changes[-1] == ClusterQuotas({"10.0.0.1": 5}), source
                assert len(watched.changes) == (1 if source == "file" else 2), source
        assert watched.problems == [], source
        events = [line["event"] for line in logs]
        times = int(source != "file")
        assert (events.count("broker_limits_unknown"), events.count("broker_limits_known")) == (times, times), source


async def test_a_limit_of_the_broker_that_is_too_tight_is_warned_of_once(cluster: Cluster) -> None:
    cluster.configs = {"max.connections.per.ip": "10"}
    with capture_logs() as logs:
        async with watching(cluster) as watched:
            await watched.look()
            cluster.configs["max.connections.per.ip"] = "20"
            await watched.look()
            watched.watch.reconfigure(config_of({"max.connections": 20}))
            await watched.look()
    warned = [(line["key"], line["value"]) for line in logs if line["event"] == "broker_limits_sidecar"]
    assert warned == [("max.connections.per.ip", 10), ("max.connections.per.ip", 20)]


@pytest.mark.promise("limits.md", "Of two names for one address in the cluster the lower rate counts.")
async def test_names_stand_for_their_address_as_brokers_read_them(cluster: Cluster) -> None:
    cluster.stored = {"localhost": 5.0, "[::1]": 5.0, "0:0::1": 6.0, "010.0.0.7": 7.0, "0x7f.1": 8.0}
    cluster.stored |= {"10.0.0.1": 0.0, "10.0.0.2": float("nan"), "10.0.0.3": float("inf"), "10.0.0.4": 1.0}
    others = {"::1": 5, "10.0.0.7": 7, "10.0.0.3": UNLIMITED, "10.0.0.4": 1}  # what Kafka would not store is no rate
    with capture_logs() as logs:
        async with watching(cluster, config_of({}, "127.0.0.99")) as watched:
            cluster.stored["127.0.0.1"] = 7.0
            await watched.look()
            cluster.stored["127.0.0.1"] = 3.0
            await watched.look()
    assert [change.ip_rates for change in watched.changes] == [{"127.0.0.1": rate, **others} for rate in (5, 3)]
    assert [[*line["first"]] for line in logs if line["event"] == "quota_names_unknown"] == [["0x7f.1"]]


async def test_what_it_cannot_ask_it_says_once_and_does_not_try(cluster: Cluster) -> None:
    internal = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    for protect in (True, False):
        with capture_logs() as logs:
            watched = Watched(cluster, config_of({"protect.upstream": protect}, internal=internal))
            watched.watch.start()
            async with asyncio.timeout(60):
                await watched.watch.wait_for_first_answer()
            watched.watch.refresh()
            await asyncio.sleep(0)
            await watched.watch.close()
        assert cluster.asked == [], protect
        assert [(line["event"], line["log_level"]) for line in logs] == [("quotas_not_read", "warning")], protect
        assert "OAUTHBEARER" in (watched.watch.state.error or ""), protect
        assert (watched.watch.state.problem is not None) == protect
        watched.watch.reconfigure(config_of({"protect.upstream": not protect}, internal=internal))
        assert (watched.watch.state.problem is not None) != protect
        assert watched.problems == [], protect
