"""Whatever levels are in use one after the other, every request is recorded once, or lost and counted (F11)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.event import ROLLUP_LEVEL
from tests.unit.observers.audit_levels import Audit, check_records, fake_producers, levels_of, without_pump
from tests.unit.observers.samples import exchange

Step = tuple[str, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(0, ROLLUP_LEVEL)),
        st.tuples(st.sampled_from(("record", "denied")), st.integers(1, 4)),
        st.tuples(st.sampled_from(("dropped", "turn", "deliver", "refuse")), st.integers(1, 3)),
    ),
    max_size=40,
)


@pytest.mark.promise(
    "audit-event.md", "Whatever levels follow each other, every request is in one event or rollup, or counted as lost."
)
@given(st.sampled_from(("event", "rollup")), st.booleans(), steps)
def test_every_request_is_told_once_or_counted_as_lost(mode: str, features: bool, taken: Sequence[Step]) -> None:
    with fake_producers(), without_pump():
        audit = Audit("b", features=features, mode=mode)
        level = 1 if features or mode == "event" else ROLLUP_LEVEL
        written, requests, correlation = [level], 0, count()
        for what, n in taken:
            before = audit.stats()
            if what == "use":
                audit.use(n)
                written.append(min(n, ROLLUP_LEVEL if mode == "rollup" else 1))
            elif what in ("record", "denied"):
                code = 29 if what == "denied" else 0
                some = [exchange(correlation_id=next(correlation), error_code=code) for _ in range(n)]
                audit.observer.record_exchanges(some, 0)
                requests += n
            elif what == "dropped":
                audit.observer.record_exchanges([], n)
                requests += n
            elif what == "turn":
                audit.turn()
            elif what == "deliver":
                audit.deliver()
            elif audit.producer.sent:
                audit.producer.end("invalid_record")
            after = audit.stats()
            assert after.levels == ({n: 1} if what == "use" else before.levels)
            assert sum(after.undelivered.values()) == after.spooled + after.queued
        audit.close()
        stats, read = audit.stats(), audit.envelopes()
        found = check_records(read)
        assert set(levels_of(read)) <= set(written) - {0}
        assert (stats.taken, stats.emitted) == (requests, stats.delivered + sum(stats.dropped.values()))
        if "invalid_record" not in stats.dropped:
            lost_requests = requests - found["alone"] - found["in rollups"]
            assert 0 <= lost_requests <= sum(stats.dropped.values())
        if not stats.dropped:
            assert found["alone"] + found["in rollups"] == requests
        last = read[-1].last_seq if read else 0
        assert found["missing"] + stats.emitted - last == sum(stats.dropped.values())
