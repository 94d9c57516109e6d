"""The table ``mirror_check``: whether the records produced to one cluster arrived in another; batches count once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.schemas import MIRROR_CHECK
from spark_jobs.tables.coverage import LOST_REQUESTS, STATUSES
from spark_jobs.tables.sql import is_one_of, literal, matches, table_columns

SILENCE_LIMIT_US = 120_000_000
"""Delivery time of sidecar events in µs. A sidecar without events for longer is silent."""

_SEQUENCE = "cluster_id, topic, partition, producer_id, producer_epoch, base_sequence"
"""Columns that identify a batch of an idempotent producer. Sequence numbers repeat after 2³¹ records, at another
offset."""

_PAIR = "mirror, source_cluster_id, source_topic, target_cluster_id, target_topic"


def mirror_check(mirrors: Sequence[Mirror]) -> str:
    """Return SQL of the rows of ``mirror_check`` of the days in ``wanted``: one for each pair of topics and day.

    A pair has a row for each day on which records arrived or became due. A row depends only on its day and earlier
    days. ``produced``: the whole table up to then, because totals start with its oldest day; it is grouped by batch, so
    the work grows with its batches. ``completeness`` (merged rows) says up to which time a cluster is known.
    """
    sides = " UNION ALL ".join(side for mirror in mirrors for side in _sides(mirror))
    return f"""
WITH oldest AS MATERIALIZED (SELECT min(day) AS oldest FROM produced),
{STATUSES},
{_KNOWN},
{_WRITTEN_ONCE},
sides AS ({sides}),
{_SUMS_BY_MINUTE},
{_LASTING_LOSSES},
{_DAYS}
SELECT {table_columns(MIRROR_CHECK, since="oldest")} FROM states WHERE day IN (SELECT day FROM wanted)
"""


def _sides(mirror: Mirror) -> list[str]:
    """Return SQL of what is written on each side of ``mirror``: with ``_PAIR``, ``is_source`` and ``lag_us``."""
    source_topic = f"substring(topic, {len(mirror.prefix) + 1})"
    source = f"cluster_id = {literal(mirror.source_cluster_id)} AND {matches('topic', [mirror.topics])}"
    target = f"cluster_id = {literal(mirror.target_cluster_id)} AND {matches(source_topic, [mirror.topics])}"
    target += f" AND starts_with(topic, {literal(mirror.prefix)})"
    target += f" AND {is_one_of('principal', mirror.principals)}" if mirror.principals else ""
    target += f" AND {is_one_of('client_id', mirror.client_ids)}" if mirror.client_ids else ""
    return [_side(mirror, "topic", True, source), _side(mirror, source_topic, False, target)]


def _side(mirror: Mirror, topic: str, is_source: bool, condition: str) -> str:
    return f"""
    SELECT {literal(mirror.name)} AS mirror, {literal(mirror.source_cluster_id)} AS source_cluster_id,
        {topic} AS source_topic, {literal(mirror.target_cluster_id)} AS target_cluster_id,
        {literal(mirror.prefix)} || {topic} AS target_topic, {is_source} AS is_source,
        {mirror.lag // timedelta(microseconds=1)}::BIGINT AS lag_us,
        at_us, partition IS NOT NULL AS exact, confirmed, unconfirmed, again
    FROM written WHERE {condition}"""


_KNOWN = f"""
brokers_by_day AS (
    SELECT cluster_id, broker_id, day,
        max(CASE WHEN last_status IS NOT NULL THEN epoch_us(minute) + 60000000 END) AS until_us,
        max(CASE WHEN last_status IS NOT NULL THEN struct_pack(last_status, ended) END).ended AS ended,
        bool_or({LOST_REQUESTS}) AS lossy
    FROM statuses, oldest WHERE day >= oldest GROUP BY ALL
),
brokers_so_far AS (
    SELECT cluster_id, heard.day, broker_id, max(until_us) AS until_us,
        coalesce(max(CASE WHEN until_us IS NOT NULL THEN struct_pack(until_us, ended) END).ended, false) AS ended,
        bool_or(lossy) AS lossy
    FROM brokers_by_day JOIN (
        SELECT DISTINCT cluster_id, day FROM brokers_by_day WHERE until_us IS NOT NULL
    ) AS heard USING (cluster_id)
    WHERE brokers_by_day.day <= heard.day GROUP BY ALL
),
clusters_by_day AS (
    SELECT cluster_id, day, coalesce(min(until_us) FILTER (NOT ended), max(until_us)) AS until_us,
        max(until_us) AS newest_us, bool_or(lossy) AS lossy
    FROM brokers_so_far GROUP BY ALL
),
known AS MATERIALIZED (
    SELECT cluster_id, day, max(until_us) OVER so_far AS until_us, newest_us - until_us > {SILENCE_LIMIT_US} AS silent,
        coalesce(bool_or(lossy) OVER so_far, false) AS lossy
    FROM clusters_by_day WINDOW so_far AS (PARTITION BY cluster_id ORDER BY day ROWS UNBOUNDED PRECEDING)
),
first_known AS MATERIALIZED (SELECT cluster_id, until_us, min(day) AS day FROM known GROUP BY ALL)"""
"""The state of each cluster at the end of each day with statuses of its sidecars.

``until_us``: the end of the last minute that all sidecars have reported, without those that were stopped cleanly;
``silent``: a sidecar has not reported for ``SILENCE_LIMIT_US``; ``lossy``: events were lost so far. ``first_known``:
the first day on which a cluster was known so far."""

_WRITTEN_ONCE = f"""
copies AS (
    SELECT *, coalesce(producer_id >= 0 OR (outcome = 'acknowledged' AND base_offset >= 0), false) AS is_distinct,
        CASE WHEN producer_id >= 0 THEN NULL ELSE "at" END AS sent_at
    FROM produced WHERE outcome <> 'rejected'
),
batches AS (
    SELECT {_SEQUENCE}, principal, client_id, base_offset, sent_at, outcome, min("at") AS "at", max(records) AS records,
        count(*) AS copies,
        -- Of equal sequences: an acknowledgement with an offset, then one without (a duplicate), then no response.
        CASE WHEN outcome <> 'acknowledged' THEN 0 WHEN base_offset >= 0 THEN 2 ELSE 1 END AS rank
    FROM copies WHERE is_distinct GROUP BY ALL
),
ranked AS (
    SELECT *, CASE WHEN producer_id < 0 OR rank = max(rank) OVER (PARTITION BY {_SEQUENCE}) THEN 1 ELSE 0 END AS kept
    FROM batches
    UNION ALL BY NAME
    SELECT cluster_id, topic, partition, principal, client_id, outcome, "at", records, 1 AS copies, 1 AS kept
    FROM copies WHERE NOT is_distinct
),
written AS (
    SELECT cluster_id, topic, partition, principal, client_id, epoch_us("at") AS at_us,
        CASE WHEN outcome = 'acknowledged' THEN kept * records ELSE 0 END AS confirmed,
        CASE WHEN outcome = 'unconfirmed' THEN kept * records ELSE 0 END AS unconfirmed,
        (copies - kept) * records AS again
    FROM ranked
)"""
"""Each written batch once, with its ``confirmed``, ``unconfirmed`` and retried (``again``) records.

A batch is identified by its sequence if its producer is idempotent, otherwise by its offset if it has one. A batch
without a response was retried if the same sequence was acknowledged. Rollups are not deduplicated."""


def _with_first_days(rows: str) -> str:
    """Return SQL of ``rows`` with the first days on which ``source`` and ``target`` were known to ``known_us``."""
    return rows + "".join(
        f" LEFT JOIN first_days AS {side}"
        f" ON {side}.cluster_id = {side}_cluster_id AND {side}.known_us = {rows}.known_us"
        for side in ("source", "target")
    )


_BOTH_DAY = "CASE WHEN source.day IS NOT NULL AND target.day IS NOT NULL THEN greatest(source.day, target.day) END"

_SUMS_BY_MINUTE = f"""
sums AS MATERIALIZED (
    SELECT {_PAIR}, is_source, lag_us, exact, make_timestamp(at_us)::DATE AS day,
        (at_us + CASE WHEN is_source THEN lag_us ELSE 0 END + 59999999) // 60000000 * 60000000 AS known_us,
        sum(confirmed) AS confirmed, sum(unconfirmed) AS unconfirmed, sum(again) AS again,
        -- Records that arrive early on the oldest day may have been produced on the day before, which is not retained.
        coalesce(sum(confirmed) FILTER (NOT is_source AND at_us >= epoch_us(oldest::TIMESTAMP) + lag_us), 0) AS judged
    FROM sides, oldest GROUP BY ALL
),
moments AS (SELECT known_us FROM sums UNION SELECT known_us - lag_us FROM sums WHERE is_source),
first_days AS MATERIALIZED (
    SELECT clusters.cluster_id, known_us, day
    FROM moments CROSS JOIN (SELECT DISTINCT cluster_id FROM first_known) AS clusters
    ASOF JOIN first_known ON first_known.cluster_id = clusters.cluster_id AND known_us <= until_us
),
minutes AS MATERIALIZED (
    SELECT sums.*, source.day AS source_day, {_BOTH_DAY} AS both_day FROM {_with_first_days("sums")}
)"""
"""Sums by pair, side, day, and ``known_us``: the end of the minute up to which a cluster has to be known, the minute in
which records of the source are due, and in which records of the target arrived. With the first days on which the
source, and both clusters, were known up to then."""

_LASTING_LOSSES = f"""
changes AS (
    SELECT {_PAIR}, known_us, confirmed AS overdue, 0 AS open FROM minutes WHERE is_source
    UNION ALL
    SELECT {_PAIR}, known_us - lag_us, 0, confirmed FROM minutes WHERE is_source
    UNION ALL
    SELECT {_PAIR}, known_us, -confirmed, -confirmed FROM minutes WHERE NOT is_source
),
by_minute AS (SELECT {_PAIR}, known_us, sum(overdue) AS overdue, sum(open) AS open FROM changes GROUP BY ALL),
ends AS (
    SELECT * REPLACE (sum(overdue) OVER so_far AS overdue, sum(open) OVER so_far AS open) FROM by_minute
    WINDOW so_far AS (PARTITION BY {_PAIR} ORDER BY known_us ROWS UNBOUNDED PRECEDING)
),
known_ends AS (SELECT ends.*, {_BOTH_DAY} AS day FROM {_with_first_days("ends")}),
lasting AS (
    SELECT *, min(open) OVER (PARTITION BY {_PAIR}, day ORDER BY known_us DESC ROWS UNBOUNDED PRECEDING) AS least_open
    FROM known_ends WHERE day IS NOT NULL
),
stayed_by_day AS MATERIALIZED (
    SELECT {_PAIR}, day, max(least(overdue, least_open)) AS missing, min(open) AS open FROM lasting GROUP BY ALL
),
stayed AS (
    SELECT {_PAIR}, list(struct_pack(day := day, missing := missing, open := open) ORDER BY day) AS stayed
    FROM stayed_by_day GROUP BY ALL
)"""
"""By pair, and day on which minutes became known: the ``missing`` records and the least ``open`` ones.

Records that were overdue at the end of a minute may arrive later. They are missing only up to the number of records
that are open (produced and not arrived) at the end of every later minute."""

_STAYED_MISSING = """coalesce(list_reduce(list_filter(stayed, lambda one: one.day <= totals.day), lambda so_far, one:
    {'day': one.day, 'missing': greatest(one.missing, least(so_far.missing, one.open)), 'open': one.open},
    {'day': totals.day, 'missing': 0::HUGEINT, 'open': 0::HUGEINT}).missing, 0)"""
"""SQL of the records that were missing at the end of a row's day. Each day may increase or decrease the number."""


def _so_far(side: str) -> str:
    return f"ASOF LEFT JOIN known AS {side} ON {side}.cluster_id = {side}_cluster_id AND totals.day >= {side}.day"


_DAYS = f"""
daily AS (
    SELECT {_PAIR}, exact, day, confirmed AS produced, again AS retried, unconfirmed FROM minutes WHERE is_source
    UNION ALL BY NAME
    SELECT {_PAIR}, exact, day, confirmed AS mirrored, again AS retried FROM minutes WHERE NOT is_source
    UNION ALL BY NAME
    SELECT {_PAIR}, exact, both_day AS day, confirmed AS due FROM minutes
    WHERE is_source AND both_day IS NOT NULL AND confirmed > 0
    UNION ALL BY NAME
    SELECT {_PAIR}, exact, greatest(day, source_day) AS day, judged FROM minutes
    WHERE NOT is_source AND source_day IS NOT NULL AND judged > 0
),
days AS (
    SELECT {_PAIR}, day, bool_and(exact) AS exact, coalesce(sum(produced), 0) AS produced_records,
        coalesce(sum(mirrored), 0) AS mirrored_records, coalesce(sum(retried), 0) AS retried_records,
        coalesce(sum(unconfirmed), 0) AS unconfirmed_records, coalesce(sum(due), 0) AS due_records,
        coalesce(sum(judged), 0) AS judged_records
    FROM daily GROUP BY ALL
),
totals AS (
    SELECT * REPLACE (bool_and(exact) OVER so_far AS exact), sum(produced_records) OVER so_far AS produced_total,
        sum(mirrored_records) OVER so_far AS mirrored_total, sum(due_records) OVER so_far AS due_total,
        sum(judged_records) OVER so_far AS judged_total
    FROM days WINDOW so_far AS (PARTITION BY {_PAIR} ORDER BY day ROWS UNBOUNDED PRECEDING)
),
judged AS (
    SELECT totals.*
            REPLACE (exact AND NOT coalesce(source.lossy, false) AND NOT coalesce(target.lossy, false) AS exact),
        oldest.oldest, coalesce(source.silent, false) OR coalesce(target.silent, false) AS silent,
        source.until_us AS source_us, target.until_us AS target_us, {_STAYED_MISSING} AS stayed_missing,
        greatest(0, stayed_by_day.open) AS behind_records
    FROM totals LEFT JOIN stayed USING ({_PAIR}) LEFT JOIN stayed_by_day USING ({_PAIR}, day) CROSS JOIN oldest
    {_so_far("source")} {_so_far("target")}
),
states AS (
    SELECT *, greatest(0, due_total - mirrored_total, least(stayed_missing, produced_total - mirrored_total))
            AS missing_records,
        greatest(0, judged_total - produced_total) AS surplus_records,
        CASE WHEN source_us IS NOT NULL AND target_us IS NOT NULL
            THEN make_timestamp((least(source_us, target_us) - 60000000)::BIGINT) END AS as_of,
        CASE
            WHEN source_us IS NULL OR target_us IS NULL THEN 'unknown'
            WHEN missing_records > 0 THEN 'missing'
            WHEN surplus_records > 0 THEN 'surplus'
            WHEN silent THEN 'unknown'
            WHEN mirrored_total < produced_total THEN 'lagging'
            ELSE 'equal'
        END AS state
    FROM judged
)"""
