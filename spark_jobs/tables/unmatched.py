"""Definitions that have matched no row so far. A name in them may be misspelled."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_jobs.definitions import Definitions


def unmatched_objectives(slo: DataFrame, declared: Definitions) -> list[str]:
    """Return the names of the objectives without a request in any row of ``slo``."""
    matched = set(map(tuple, slo.where("total > 0").select("slo", "objective").distinct().collect()))
    return [f"objective {each.slo}, {each.name}" for each in declared.objectives
            if (each.slo, each.name) not in matched]  # fmt: skip


def unmatched_charges(cost: DataFrame, declared: Definitions) -> list[str]:
    """Return the names of the prices and teams without a row of ``cost``."""
    found = cost.selectExpr("BillingAccountId", "SkuId", "x_Team").distinct().collect()
    charged, teams = {tuple(row[:2]) for row in found}, {row.x_Team for row in found}
    prices = [f"price {name}" for each in declared.prices for name in dict.fromkeys(price.name for price in each.prices)
              if (each.account.id, name) not in charged]  # fmt: skip
    return prices + [f"team {name}" for name in dict.fromkeys(rule.team for rule in declared.owners.rules)
                     if name not in teams]  # fmt: skip
