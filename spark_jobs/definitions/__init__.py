"""What users declare for the tables: YAML documents of several kinds; ``kind`` names the kind. Imports no Spark.

load.py                 reads files and folders of documents and checks all of them before anything is used.
documents.py            YAML documents, and the errors in them with file and document number.
validation_messages.py  translates pydantic errors into plain English.
model.py                what all kinds have in common.
mirror.py               ``Mirror``.
retention.py            ``Retention``.
prices.py               ``Prices``, ``Owners``, ``Zones``.
objectives.py           ``SLO`` and ``SLI``, as defined by OpenSLO.
describe.py             describes what definitions declare, one line each.
"""

from __future__ import annotations

from spark_jobs.definitions.load import Definitions, load

__all__ = ["Definitions", "load"]
