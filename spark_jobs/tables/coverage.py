"""How much of a cluster its sidecars observed, computed from ``completeness``. Used by tables that report absence.

A broker is covered from the start of a boot of its sidecar to the last status of the boot. A pause of less than a
minute between two boots is a restart, during which clients could not connect either. Not covered are: longer pauses,
events that were lost or are in conflict with others, and the end of a boot that was killed. A broker whose sidecar was
stopped cleanly a day ago or earlier, and did not come back, counts as decommissioned.
"""

from __future__ import annotations

ABSENCE_LIMIT = "INTERVAL 60 SECONDS"
"""A sidecar without a status for this long was absent. It sends one every ten seconds."""

DELIVERY_GRACE = "INTERVAL 120 SECONDS"
"""Event numbers that are missing in data newer than this may still arrive by another partition. They do not count
yet."""

DECOMMISSIONED_AFTER = "INTERVAL 1 DAY"
"""A sidecar that was stopped cleanly this long ago was decommissioned together with its broker."""

LOST_REQUESTS = "(lost > 0 AND coalesce(reason, '') <> 'interval_full')"
"""SQL condition on ``completeness``: events of requests, connections or topics were lost. Members of groups and ends of
partitions beyond the bounds of an interval are not about what was produced and consumed."""

STATUSES = f"""
statuses AS MATERIALIZED (
    SELECT * EXCLUDE (newest) FROM (
        SELECT *, max(CASE WHEN emitted IS NOT NULL THEN struct_pack(emitted, at := last_status) END)
            OVER (PARTITION BY cluster_id, broker_id, boot_id) AS newest
        FROM completeness
    ) WHERE coalesce(last_status < newest.at + {ABSENCE_LIMIT}, true)
)"""
"""``completeness`` without statuses that were sent while the clock of a sidecar was ahead: the boot sent an earlier
time later, in the order of its event numbers."""

SIDECAR_RUNS = """
sidecar_runs AS MATERIALIZED (
    SELECT cluster_id, broker_id, boot_id,
        coalesce(max(last_status), max(minute)) AS last_seen, coalesce(bool_or(ended), false) AS ended
    FROM statuses WHERE reason IS NULL GROUP BY ALL
)"""
"""One row for each boot of a sidecar; ``ended``: it was stopped cleanly. Needs ``STATUSES``."""

_BROKERS = f"""
alive AS (
    SELECT cluster_id, broker_id, last_status, ended,
        -- The first status is sent ten seconds after the start of a boot, which may be in the minute before.
        CASE WHEN statuses > 0 THEN CASE WHEN started_at > minute - {ABSENCE_LIMIT} THEN started_at ELSE minute END END
            AS begun,
        CASE WHEN {LOST_REQUESTS} OR conflicts > 0 THEN minute + {ABSENCE_LIMIT} END AS lost_until
    FROM statuses
),
reached AS (
    SELECT *, max(last_status) OVER (PARTITION BY cluster_id, broker_id ORDER BY begun NULLS FIRST
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM alive
),
pauses AS (SELECT *, coalesce(begun >= reached + {ABSENCE_LIMIT}, false) AS paused FROM reached),
of_brokers AS (
    SELECT cluster_id, broker_id, min(begun) AS first, max(last_status) AS last,
        max(CASE WHEN last_status IS NOT NULL THEN struct_pack(last_status, ended) END).ended AS ended,
        sum(CASE WHEN paused THEN epoch_us(begun) - epoch_us(reached) ELSE 0 END) AS paused_us,
        max(begun) FILTER (paused) AS back_at, max(lost_until) AS lost_until
    FROM pauses GROUP BY ALL
),
of_clusters AS (
    SELECT *, min(first) OVER (PARTITION BY cluster_id) AS since, max(last) OVER (PARTITION BY cluster_id) AS as_of
    FROM of_brokers
),
absences AS (
    SELECT *, coalesce(first >= since + {ABSENCE_LIMIT}, false) AS late,
        coalesce(last <= as_of - {ABSENCE_LIMIT}, true)
            AND NOT coalesce(ended AND last <= as_of - {DECOMMISSIONED_AFTER}, false) AS gone
    FROM of_clusters
),
brokers AS MATERIALIZED (
    SELECT cluster_id, broker_id, since, as_of,
        paused_us + CASE WHEN late THEN epoch_us(first) - epoch_us(since) ELSE 0 END
            + CASE WHEN gone THEN epoch_us(as_of) - coalesce(epoch_us(last), epoch_us(since)) ELSE 0 END AS away_us,
        greatest(back_at, lost_until, CASE WHEN late THEN first END, CASE WHEN gone THEN as_of END) AS unseen_until
    FROM absences
)"""
"""By broker ``away_us`` and ``unseen_until`` (NULL: fully covered), with ``since`` and ``as_of`` of the cluster."""

_LOSSES = f"""
clusters AS (SELECT DISTINCT cluster_id, since, as_of FROM brokers),
minutes_of_boots AS (
    SELECT cluster_id, boot_id, minute, min(broker_id) AS broker_id, min(started_at) AS started_at,
        sum(events) + sum(lost) AS known, least(min(first_seq), min(lost_first_seq)) AS first,
        greatest(max(last_seq), max(lost_last_seq)) AS last
    FROM completeness GROUP BY ALL
),
-- The numbers of a boot that started before the oldest row are counted from the first number in the table.
open_numbers AS (
    SELECT cluster_id, broker_id, boot_id, minute, as_of, max(last) OVER so_far - sum(known) OVER so_far
        - CASE WHEN min(started_at) OVER run >= since THEN 0 ELSE min(first) OVER run - 1 END AS open
    FROM minutes_of_boots JOIN clusters USING (cluster_id)
    WINDOW run AS (PARTITION BY cluster_id, boot_id),
        so_far AS (PARTITION BY cluster_id, boot_id ORDER BY minute ROWS UNBOUNDED PRECEDING)
),
-- Events that arrive later, from a spool, may fill a gap.
never_filled AS (
    SELECT *, min(open) OVER (PARTITION BY cluster_id, boot_id ORDER BY minute DESC ROWS UNBOUNDED PRECEDING) AS gap
    FROM open_numbers
),
growing AS (
    SELECT *, lag(gap, 1, 0) OVER (PARTITION BY cluster_id, boot_id ORDER BY minute) AS gap_before FROM never_filled
),
losses AS (
    SELECT cluster_id, broker_id, minute + {ABSENCE_LIMIT} AS unseen_until FROM growing
    WHERE gap > greatest(gap_before, 0) AND minute <= as_of - {DELIVERY_GRACE}
    UNION ALL
    SELECT cluster_id, broker_id, last_seen + {ABSENCE_LIMIT} FROM sidecar_runs JOIN clusters USING (cluster_id)
    WHERE NOT ended AND last_seen <= as_of - {ABSENCE_LIMIT}
)"""
"""``unseen_until`` of boots that were killed, and of missing event numbers that no sidecar reported as lost."""

COVERAGE = f"""{STATUSES}, {SIDECAR_RUNS}, {_BROKERS}, {_LOSSES},
unseen AS (
    SELECT * FROM brokers UNION ALL BY NAME SELECT * FROM losses
),
by_cluster AS (
    SELECT cluster_id, max(since) AS since, max(as_of) AS as_of, max(unseen_until) AS unseen_until,
        sum(away_us) / count(away_us) AS away_us,
        coalesce(list_sort(list(DISTINCT broker_id) FILTER (unseen_until IS NOT NULL)), []) AS uncovered_brokers
    FROM unseen GROUP BY ALL
),
coverage AS (
    SELECT cluster_id, since, as_of, uncovered_brokers, least(as_of, greatest(since, unseen_until)) AS covered_since,
        CASE WHEN since < as_of THEN 1 - away_us / (epoch_us(as_of) - epoch_us(since)) END AS coverage
    FROM by_cluster
)"""
"""One row for each cluster of ``completeness`` (merged rows).

Columns: cluster_id; since, as_of: the first and the last time at which any of its sidecars was alive, NULL without
a status; covered_since: the time from which on all brokers were covered and no event was lost, equal to since if
that was always so; coverage: the share of the time in which brokers were covered; uncovered_brokers: the brokers
that were not covered or whose events were lost. Only brokers with a sidecar are known.

The work grows with boots × minutes. Only rows of one broker, or of one boot, are sorted together.
"""
