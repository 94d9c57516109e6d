"""What users declare for the tables: YAML documents of several kinds, told apart by ``kind``. Imports no Spark.

load.py        reads files and folders of documents, and checks all of them before anything is used.
documents.py   YAML documents, and the mistakes in them, each with its place; words.py: the mistakes in words.
model.py       what all kinds have in common.
mirror.py      ``Mirror``.
retention.py   ``Retention``.
prices.py      ``Prices``, ``Owners``, ``Zones``.
objectives.py  ``SLO``, as OpenSLO writes it.
describe.py    what definitions declare, for who wrote them.
"""

from __future__ import annotations

from spark_jobs.definitions.load import Definitions, load

__all__ = ["Definitions", "load"]
