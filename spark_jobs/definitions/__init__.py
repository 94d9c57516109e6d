"""What users declare for the tables: YAML documents of several kinds, told apart by ``kind``. Imports no Spark.

``load`` reads files and folders of documents and checks all of them before anything is used. Each kind has a file:
``mirror.py`` (Mirror), ``retention.py`` (Retention), ``prices.py`` (Prices, Owners, Zones), ``objectives.py`` (SLO, as
OpenSLO writes it).
"""

from __future__ import annotations

from spark_jobs.definitions.load import Definitions, load

__all__ = ["Definitions", "load"]
