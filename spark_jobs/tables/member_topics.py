"""The table ``groups``: the members of groups, and the topics that they read."""

from __future__ import annotations

from spark_jobs.schemas import GROUPS
from spark_jobs.tables.sql import table_columns
from spark_jobs.tables.topics import IS_READ

_CLIENT = ("day", "cluster_id", "principal", "client_id", "client_ip")
"""Columns that identify a client of one day, without its connections."""

_MEMBER = (*_CLIENT, "group_id", "member_id", "group_instance_id")
"""Columns that identify a member of one day."""


def _same(one: str, other: str, names: tuple[str, ...]) -> str:
    """Return a condition: ``names`` are equal or both NULL."""
    return " AND ".join(f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in names)


_COLUMNS = table_columns(GROUPS, **{name: f"member.{name}" for name in _MEMBER})

GROUPS_SQL = f"""
WITH members AS MATERIALIZED (
    SELECT {", ".join(_MEMBER)}, arg_max(group_type, last_seen) AS group_type,
        arg_max(generation_id, last_seen) AS generation_id, sum(requests) AS requests, sum(commits) AS commits,
        min(first_seen) AS first_seen, max(last_seen) AS last_seen
    FROM group_members GROUP BY ALL
),
own AS MATERIALIZED (
    SELECT {", ".join(_MEMBER)}, topic, max(committed_at) AS committed_at,
        CASE WHEN max(committed_at) IS NULL THEN 'connection' ELSE 'commit' END AS topic_source
    FROM group_members WHERE topic IS NOT NULL GROUP BY {", ".join(_MEMBER)}, topic
),
fetched AS (SELECT DISTINCT {", ".join(_CLIENT)}, topic FROM traffic WHERE topic IS NOT NULL AND {IS_READ}),
clients AS (
    SELECT {", ".join(_CLIENT)}, CASE WHEN count(DISTINCT group_id) > 1 THEN 'shared_client' ELSE 'client' END AS source
    FROM members GROUP BY {", ".join(_CLIENT)}
),
-- Topics that the client of a member fetched, and that are not known of the member itself. A commit without membership
-- is a tool's.
of_clients AS (
    SELECT {", ".join(f"member.{name}" for name in _MEMBER)}, fetched.topic, clients.source AS topic_source
    FROM members AS member JOIN clients ON {_same("member", "clients", _CLIENT)}
    JOIN fetched ON {_same("member", "fetched", _CLIENT)}
    ANTI JOIN own ON {_same("member", "own", _MEMBER)} AND own.topic = fetched.topic
    WHERE member.member_id IS NOT NULL
),
topics_of_members AS (SELECT * FROM own UNION ALL BY NAME SELECT * FROM of_clients)
SELECT {_COLUMNS} FROM members AS member LEFT JOIN topics_of_members AS one ON {_same("member", "one", _MEMBER)}
"""
"""Of the days wanted: ``group_members`` (merged) and ``traffic``."""
