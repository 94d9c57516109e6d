"""Definitions that have matched no row so far. A name in them may be misspelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_jobs.definitions import Definitions

Fetch = Callable[[str], list[tuple[Any, ...]]]
"""Runs SQL over the table in question, and returns the rows of the result."""


def unmatched_objectives(fetch: Fetch, declared: Definitions) -> list[str]:
    """Return the names of the objectives without a request in any row of ``slo``."""
    matched = set(fetch("SELECT DISTINCT slo, objective FROM slo WHERE total > 0"))
    return [f"objective {each.slo}, {each.name}" for each in declared.objectives
            if (each.slo, each.name) not in matched]  # fmt: skip


def unmatched_charges(fetch: Fetch, declared: Definitions) -> list[str]:
    """Return the names of the prices and teams without a row of ``cost``."""
    found = fetch("SELECT DISTINCT BillingAccountId, SkuId, x_Team FROM cost")
    charged, teams = {row[:2] for row in found}, {row[2] for row in found}
    prices = [f"price {name}" for each in declared.prices for name in dict.fromkeys(price.name for price in each.prices)
              if (each.account.id, name) not in charged]  # fmt: skip
    return prices + [f"team {name}" for name in dict.fromkeys(rule.team for rule in declared.owners.rules)
                     if name not in teams]  # fmt: skip
