"""The saved queries of ``brokerside query --ask``, with their SQL. Imports no Spark.

A ``$name`` in the SQL is a parameter. ``PARAMETERS`` has all parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any

from spark_jobs.errors import QueryError
from spark_jobs.query import TableReader
from spark_jobs.schemas import TABLES

PARAMETERS: Mapping[str, Any] = {
    "since": date(1, 1, 1),
    "until": date(9999, 12, 31),
    "limit": 20,
    "topic": None,  # required
    "at": None,  # now
}
"""Every parameter of a saved query, with its default value."""


@dataclass(frozen=True)
class SavedQuery:
    """One saved query."""

    name: str
    meaning: str
    """The question that it answers, in one sentence."""
    sql: str

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it reads, in the order of the SQL."""
        used = re.findall(r"\b(?:FROM|JOIN) (\w+)", self.sql)
        return tuple(name for name in dict.fromkeys(used) if name in TABLES)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters in the SQL, in the order of ``PARAMETERS``."""
        used = set(re.findall(r"\$(\w+)", self.sql))
        return tuple(name for name in PARAMETERS if name in used)


def run_saved_query(
    reader: TableReader, name: str, given: Mapping[str, Any]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run the saved query ``name``, and return the names of its columns and its rows. ``given``: parameter values.

    Raises QueryError for an unknown query or parameter, a missing parameter, or a missing table; the text says what
    would create the table.
    """
    sql, parameters = prepare_saved_query(reader, name, given)
    return reader.fetch_rows(sql, parameters)


def prepare_saved_query(reader: TableReader, name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the SQL of the saved query ``name`` and the values of all its parameters.

    Raises QueryError in the cases of ``run_saved_query``.
    """
    query = SAVED_QUERIES.get(name)
    if query is None:
        near = get_close_matches(name, SAVED_QUERIES, n=1)
        meant = f"did you mean {near[0]}?" if near else f"the saved queries are: {', '.join(SAVED_QUERIES)}"
        raise QueryError(f"there is no saved query {name}; {meant}")
    unknown = sorted(given.keys() - set(query.parameters))
    if unknown:
        allowed = ", ".join(query.parameters) or "none"
        raise QueryError(f"the saved query {name} has no parameter {unknown[0]}; its parameters are: {allowed}")
    for table in query.tables:
        if table not in reader.tables:
            raise QueryError(f"the saved query {name} cannot be run: {reader.explain_missing(table)}")
    values = {key: given.get(key, PARAMETERS[key]) for key in query.parameters}
    if "at" in values and values["at"] is None:
        values["at"] = datetime.now(UTC)
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise QueryError(f"the saved query {name} needs --{missing[0]}")
    return query.sql, values


_RUNS = """
WITH kept AS (SELECT min(day) AS since FROM completeness), runs AS (
    SELECT cluster_id, broker_id, boot_id, sum(events) AS events, sum(lost) AS lost,
        coalesce(sum(conflicts), 0) AS conflicts,
        list(DISTINCT reason) FILTER (reason IS NOT NULL) AS reasons, min(minute) AS oldest, max(minute) AS newest,
        -- of a run that is older than the table the first numbers were deleted with their days
        CASE WHEN min(started_at)::DATE < min(since)
            THEN least(min(first_seq), min(lost_first_seq)) - 1 ELSE 0 END AS before,
        greatest(max(last_seq), max(lost_last_seq)) - before - sum(events) - sum(lost) AS short,
        greatest(short, 0) AS missing, greatest(-short, 0) AS duplicates
    FROM completeness, kept GROUP BY cluster_id, broker_id, boot_id
)"""
"""Each boot of a sidecar with ``missing``: numbers up to the highest known one that neither arrived nor are reported as
lost; or with ``duplicates``: events in excess of the numbers."""

_QUERIES = """
-- top-talkers: Who moves the most bytes?
SELECT principal, client_id,
    coalesce(sum(bytes) FILTER (api = 'Produce'), 0)::BIGINT AS produced_bytes,
    coalesce(sum(bytes) FILTER (api IN ('Fetch', 'ShareFetch')), 0)::BIGINT AS consumed_bytes,
    coalesce(sum(records) FILTER (api = 'Produce'), 0)::BIGINT AS produced_records,
    coalesce(sum(records) FILTER (api IN ('Fetch', 'ShareFetch')), 0)::BIGINT AS consumed_records,
    sum(unconfirmed_bytes)::BIGINT AS unconfirmed_bytes, sum(requests)::BIGINT AS requests,
    sum(errors)::BIGINT AS errors
FROM traffic WHERE day BETWEEN $since AND $until
GROUP BY principal, client_id
ORDER BY produced_bytes + consumed_bytes + sum(unconfirmed_bytes) DESC, requests DESC, principal, client_id
LIMIT $limit;

-- topic-users: Who writes and who reads this topic?
SELECT principal, client_id,
    coalesce(sum(bytes) FILTER (api = 'Produce'), 0)::BIGINT AS produced_bytes,
    coalesce(sum(bytes) FILTER (api IN ('Fetch', 'ShareFetch')), 0)::BIGINT AS consumed_bytes,
    coalesce(sum(records) FILTER (api = 'Produce'), 0)::BIGINT AS produced_records,
    coalesce(sum(records) FILTER (api IN ('Fetch', 'ShareFetch')), 0)::BIGINT AS consumed_records,
    sum(topic_errors)::BIGINT AS errors, list(DISTINCT client_ip ORDER BY client_ip) AS addresses,
    min(minute) AS first_minute, max(minute) AS last_minute
FROM traffic WHERE topic = $topic AND day BETWEEN $since AND $until
GROUP BY principal, client_id
ORDER BY produced_bytes + consumed_bytes DESC, principal, client_id LIMIT $limit;

-- unused-topics: Which topics does nobody use, and since when?
SELECT cluster_id, topic, state, unused_since, last_polled, partitions, coverage, uncovered_brokers
FROM topics WHERE state <> 'used' AND NOT coalesce(internal, false) AND present
ORDER BY list_position(['unused', 'polled_only', 'unknown'], state), unused_since, cluster_id, topic LIMIT $limit;

-- chargeback: What does each team cost, month by month?
SELECT strftime(day, '%Y-%m') AS month, x_Team AS team, sum(BilledCost) AS cost, BillingCurrency AS currency,
    round(sum(BilledCost) / nullif(sum(sum(BilledCost)) OVER (PARTITION BY month, currency), 0), 4)::DOUBLE AS share
FROM cost WHERE day BETWEEN $since AND $until
GROUP BY month, team, currency
ORDER BY month DESC, currency, cost DESC, team LIMIT $limit;

-- cross-zone: What does traffic between zones cost, and whose is it?
SELECT x_Team AS team, x_PrincipalId AS principal, x_Topic AS topic, x_Direction AS direction,
    AvailabilityZone AS broker_zone, sum(PricingQuantity) AS gigabytes, sum(BilledCost) AS cost,
    BillingCurrency AS currency
FROM cost WHERE SkuMeter = 'cross_zone_gb' AND day BETWEEN $since AND $until
GROUP BY ALL
ORDER BY currency, cost DESC, team, principal, topic, direction, broker_zone LIMIT $limit;

-- budget-left: How is each objective met, and how much of its error budget is left?
SELECT slo, CASE WHEN regexp_full_match(objective, '[0-9]+')  -- it has no name but its place
        THEN concat_ws(' in ', format('{:.10g} %', objective_ratio * 100), format('{:.10g} ms', threshold_ms))
        ELSE objective END AS objective, cluster_id,
    concat_ws(' ', api, topic, principal, client_id) AS judged, total, good, attainment,
    objective_ratio AS target, CASE WHEN coalesce(total >= 100, true)  -- fewer are not judged
        THEN period_error_budget_remaining_ratio END AS budget_left, burn_rate_1h, burn_rate_1d,
    CASE WHEN total < 100 THEN NULL WHEN page_quick OR page_slow THEN 'page'
        WHEN ticket_quick OR ticket_slow THEN 'ticket' END AS alert, as_of
FROM slo AS s WHERE day BETWEEN $since AND $until
QUALIFY row_number() OVER (
    PARTITION BY slo, s.objective, cluster_id, api, topic, principal, client_id ORDER BY day DESC) = 1
    AND (total IS DISTINCT FROM 0 OR max(total) OVER (PARTITION BY slo, s.objective) = 0)
ORDER BY budget_left NULLS LAST, slo, objective, cluster_id, judged LIMIT $limit;

-- throttled: Who is slowed down, by which limit, and who is behind the address?
WITH met AS (
    SELECT cluster_id, broker_id, client_ip, coalesce(principal, '') AS who, quota || ' of ' || scope AS why, action,
        sum(count)::BIGINT AS times, max(delay_ms) AS longest_ms, max(observed) AS observed,
        max(quota_limit) AS quota_limit, min(first_at) AS first_at, max(last_at) AS last_at
    FROM throttles WHERE day BETWEEN $since AND $until
    GROUP BY cluster_id, broker_id, client_ip, who, quota, scope, action
), behind AS (
    SELECT met.cluster_id, met.broker_id, met.client_ip, met.who,
        list(DISTINCT c.principal ORDER BY c.principal) FILTER (c.principal IS NOT NULL) AS principals,
        list(DISTINCT c.client_id ORDER BY c.client_id) FILTER (c.client_id IS NOT NULL) AS client_ids
    FROM met JOIN connections AS c USING (cluster_id, broker_id, client_ip)
    WHERE coalesce(c.opened_at <= met.last_at + to_milliseconds(coalesce(met.longest_ms, 0)), true)
        AND coalesce(c.closed_at >= met.first_at, true) AND met.who IN ('', c.principal)
    GROUP BY ALL
)
SELECT client_ip, if(who = '', principals, [who]) AS principals, client_ids, why, action, times, longest_ms,
    NULL::BIGINT AS total_ms, observed, quota_limit, first_at, last_at
FROM met LEFT JOIN behind USING (cluster_id, broker_id, client_ip, who)
UNION ALL
SELECT client_ip, [principal], [client_id], 'quota of the client, by Kafka', 'throttle', NULL, NULL,
    sum(throttle_ms)::BIGINT, NULL, NULL, min(minute), max(minute)
FROM traffic WHERE throttle_ms > 0 AND day BETWEEN $since AND $until
GROUP BY client_ip, principal, client_id
ORDER BY times DESC NULLS LAST, total_ms DESC, client_ip, client_ids, why, action LIMIT $limit;

-- who-changed: Who changed what, when, from where, with which result?
SELECT last_at, principal, client_id, client_ip, api,
    concat_ws(' ', resource_type, resource_name, 'of ' || parent_type, parent_name) AS resource,
    nullif(concat_ws(' ', op_type, mechanism, acl_permission_type, acl_operation,
        CASE WHEN acl_operation IS NOT NULL THEN 'from ' || coalesce(acl_host, 'any host') END,
        '(' || acl_pattern_type || ')'), '') AS detail,
    result, error, requests, cluster_id, broker_id, listener, connection_id
FROM changes
WHERE result != 'denied' AND NOT validate_only AND day BETWEEN $since AND $until
ORDER BY last_at DESC, principal, api, resource, detail, result, connection_id LIMIT $limit;

-- denied: Who was denied what?
SELECT principal, client_id, list(DISTINCT client_ip ORDER BY client_ip) AS addresses,
    list(DISTINCT api ORDER BY api) AS apis, resource_type || coalesce(' ' || resource_name, '') AS resource, error,
    sum(requests)::BIGINT AS requests, min(first_at) AS first_at, max(last_at) AS last_at, cluster_id
FROM changes WHERE result = 'denied' AND day BETWEEN $since AND $until
GROUP BY cluster_id, principal, client_id, resource_type, resource_name, error
ORDER BY requests DESC, principal, client_id, resource, error LIMIT $limit;

-- groups: Who reads what as which group?
SELECT group_id, topic, principal, client_id, list(DISTINCT client_ip ORDER BY client_ip) AS addresses,
    count(DISTINCT member_id) AS members, max(generation_id) AS generation_id,
    list(DISTINCT topic_source ORDER BY topic_source) FILTER (topic_source IS NOT NULL) AS known_by,
    max(committed_at) AS last_commit, max(last_seen) AS last_seen, cluster_id
FROM groups WHERE day BETWEEN $since AND $until
GROUP BY cluster_id, group_id, topic, principal, client_id
ORDER BY last_seen DESC, group_id, topic, principal, client_id LIMIT $limit;

-- lag: How far behind are the groups, as last seen?
WITH last AS (
    SELECT cluster_id, group_id, topic, partition, arg_max_null(lag, minute) AS lag,
        max_by(committed_at, minute) AS committed_at, max(end_offset_at) AS end_offset_at,
        max_by(transactional, minute) AS transactional
    FROM lag WHERE day BETWEEN $since AND $until GROUP BY cluster_id, group_id, topic, partition
)
SELECT group_id, topic, sum(lag)::BIGINT AS lag, max(lag) AS most_of_a_partition, count(*) AS partitions,
    count(*) FILTER (lag IS NULL) AS unknown, min(committed_at) AS oldest_commit, max(committed_at) AS last_commit,
    max(end_offset_at) AS end_seen_at, bool_or(transactional) AS transactional, cluster_id
FROM last GROUP BY cluster_id, group_id, topic
ORDER BY sum(lag) DESC NULLS LAST, group_id, topic LIMIT $limit;

-- old-clients: Which clients would Kafka 4 refuse?
SELECT principal, client_id, software_name, software_version, min(refused_since) AS refused_since,
    list(DISTINCT api ORDER BY api) AS apis, sum(requests)::BIGINT AS requests,
    list(DISTINCT client_ip ORDER BY client_ip) AS addresses, max(last_seen) AS last_seen
FROM clients WHERE refused_since IS NOT NULL AND day BETWEEN $since AND $until
GROUP BY principal, client_id, software_name, software_version
ORDER BY requests DESC, principal, client_id, software_name, software_version LIMIT $limit;

-- connections: Who is connected to living sidecars, and which clients use that address and principal?
WITH still AS (
    SELECT connections.* FROM connections JOIN (
        SELECT cluster_id, broker_id, boot_id FROM completeness GROUP BY cluster_id, broker_id, boot_id
        QUALIFY NOT coalesce(bool_or(ended), false)
            AND max(last_status) >= max(max(last_status)) OVER (PARTITION BY cluster_id) - INTERVAL 60 SECONDS
    ) AS alive USING (cluster_id, broker_id, boot_id) WHERE closed_at IS NULL
), behind AS (  -- the client id of a connection is known when it ends
    SELECT still.client_ip, still.principal,
        list(DISTINCT c.client_id ORDER BY c.client_id) FILTER (c.client_id IS NOT NULL) AS client_ids,
        list(DISTINCT concat_ws(' ', c.software_name, c.software_version)) FILTER (c.software_name IS NOT NULL) AS names
    FROM still JOIN clients AS c USING (cluster_id, client_ip, principal)
    WHERE coalesce(c.last_seen >= date_trunc('minute', still.opened_at), true) GROUP BY ALL
)
SELECT client_ip, principal, client_ids, list_sort(names) AS software, count(*) AS connections,
    list(DISTINCT broker_id ORDER BY broker_id) AS brokers, min(opened_at) AS oldest
FROM still LEFT JOIN behind USING (client_ip, principal)
GROUP BY client_ip, principal, client_ids, names
ORDER BY connections DESC, client_ip, principal LIMIT $limit;

-- churn: Who opens connections all the time?
WITH opened AS (
    SELECT *, count(*) OVER (PARTITION BY cluster_id, client_ip, principal, date_trunc('second', opened_at)) AS burst
    FROM connections WHERE opened_at::DATE BETWEEN $since AND $until
)
SELECT client_ip, principal, count(*) AS opened, count(closed_at) AS closed, max(burst) AS most_in_a_second,
    median(duration_ms)::BIGINT AS median_ms, count(*) FILTER (duration_ms < 1000) AS under_a_second,
    sum(authentication_failures)::BIGINT AS failed_logins
FROM opened GROUP BY client_ip, principal
ORDER BY opened DESC, client_ip, principal LIMIT $limit;

-- slowest-apis: How long do requests take, by kind, and how much of that is the broker's?
SELECT api, sum(requests)::BIGINT AS requests,
    quantile_ms(merge_counts(latencies), 0.5) AS p50_ms, quantile_ms(merge_counts(latencies), 0.99) AS p99_ms,
    quantile_ms(merge_counts(upstream_latencies), 0.99) AS broker_p99_ms,
    quantile_ms(merge_counts(service_latencies), 0.99) AS service_p99_ms
FROM latency WHERE topic IS NULL AND day BETWEEN $since AND $until
GROUP BY api ORDER BY p99_ms DESC NULLS LAST, requests DESC, api LIMIT $limit;

-- errors: Whose requests fail, and on which topics?
SELECT api, principal, client_id, sum(requests)::BIGINT AS requests, sum(errors)::BIGINT AS errors,
    sum(connection_lost)::BIGINT AS connection_lost, round(sum(errors) / nullif(sum(requests), 0), 6) AS error_ratio,
    list(DISTINCT topic ORDER BY topic) FILTER (topic_errors > 0) AS topics
FROM traffic WHERE day BETWEEN $since AND $until
GROUP BY api, principal, client_id HAVING sum(errors) + sum(connection_lost) > 0
ORDER BY errors DESC, connection_lost DESC, api, principal, client_id LIMIT $limit;

-- completeness: Can the tables be believed: did all that the sidecars sent arrive, and is any of it disputed?
{runs}
SELECT cluster_id, broker_id, count(*) AS runs, sum(events)::BIGINT AS events, sum(lost)::BIGINT AS lost,
    -- Numbers have 64 bits, and a forged record may have the highest.
    least(coalesce(sum(missing), 0), 9223372036854775807)::BIGINT AS missing,
    coalesce(sum(duplicates), 0)::BIGINT AS duplicates, sum(conflicts)::BIGINT AS conflicts,
    round(sum(events) / nullif(sum(events) + sum(lost) + sum(missing), 0), 6) AS complete,
    list_sort(list_distinct(flatten(list(reasons) FILTER (reasons IS NOT NULL)))) AS reasons, max(newest) AS newest
FROM runs GROUP BY cluster_id, broker_id
ORDER BY conflicts DESC, missing DESC, duplicates DESC, lost DESC, cluster_id, broker_id LIMIT $limit;

-- lost-events: Which events are lost, or never arrived, and why?
{runs}
SELECT cluster_id, broker_id, boot_id, reason, sum(lost)::BIGINT AS events, min(lost_first_seq) AS first_seq,
    max(lost_last_seq) AS last_seq, min(minute) AS first_minute, max(minute) AS last_minute
FROM completeness WHERE reason IS NOT NULL GROUP BY cluster_id, broker_id, boot_id, reason
UNION ALL
SELECT cluster_id, broker_id, boot_id, 'never arrived', missing::BIGINT, NULL, NULL, oldest, newest
FROM runs WHERE missing > 0
ORDER BY last_minute DESC, events DESC, cluster_id, broker_id, boot_id, reason LIMIT $limit;

-- hidden: What does configuration hide from the tables?
WITH newest AS (
    SELECT cluster_id, broker_id, boot_id, hidden_by, coalesce(max(hidden), 0) AS hidden,
        coalesce(max(partly_hidden), 0) AS partly_hidden, min(minute) AS first_minute, max(minute) AS last_minute
    FROM completeness WHERE hidden_by IS NOT NULL GROUP BY ALL
)
SELECT hidden_by, sum(hidden)::BIGINT AS events, sum(partly_hidden)::BIGINT AS partly_hidden,
    list(DISTINCT broker_id ORDER BY broker_id) AS brokers,
    min(first_minute) AS first_minute, max(last_minute) AS last_minute
FROM newest GROUP BY hidden_by ORDER BY events DESC, sum(partly_hidden) DESC, hidden_by LIMIT $limit;

-- stale-sidecars: Which sidecars have not been heard of for a minute?
SELECT cluster_id, broker_id, max(last_status) AS last_status,
    floor(epoch($at::TIMESTAMPTZ - max(last_status)))::BIGINT AS silent_seconds,
    coalesce(arg_max(ended, last_status), false) AS ended, arg_max(sidecar_version, last_status) AS sidecar_version
FROM completeness GROUP BY cluster_id, broker_id
HAVING max(last_status) < $at::TIMESTAMPTZ - INTERVAL 60 SECONDS
ORDER BY last_status, cluster_id, broker_id LIMIT $limit;

-- dead-letters: What on the audit topic could not be read, and why?
SELECT topic, reason, detail, count(*) AS records, sum(value_bytes)::BIGINT AS bytes, min(timestamp) AS first_at,
    max(timestamp) AS last_at, arg_max(partition, ("offset", partition)) AS partition, max("offset") AS last_offset
FROM dead_letters WHERE day BETWEEN $since AND $until
GROUP BY topic, reason, detail ORDER BY records DESC, topic, reason, detail LIMIT $limit;

-- mirrors: Did everything that was produced arrive in the mirror?
SELECT mirror, source_topic, target_topic, produced_total, mirrored_total, missing_records, surplus_records,
    retried_records, unconfirmed_records, state, exact, as_of
FROM mirror_check WHERE day BETWEEN $since AND $until
QUALIFY row_number() OVER (
    PARTITION BY mirror, source_cluster_id, source_topic, target_cluster_id, target_topic ORDER BY day DESC) = 1
ORDER BY missing_records DESC, surplus_records DESC, mirror, source_topic LIMIT $limit;

-- quota-advice: Which limits would have let through what came, with room?
SELECT cluster_id, broker_id, scope, listener, quota, peak, peak_at, peak_by, advice, config
FROM quota_advice ORDER BY cluster_id, broker_id NULLS FIRST, scope, listener, quota LIMIT $limit;
"""
"""Every saved query: a line with its name and meaning, and its SQL."""

SAVED_QUERIES = {
    name: SavedQuery(name, meaning, sql.replace("{runs}", _RUNS))
    for name, meaning, sql in re.findall(r"^-- ([a-z-]+): (.+)\n([^;]+);$", _QUERIES, re.MULTILINE)
}
"""Every saved query by name."""
