"""``python -m tests.tools.older_release FEATURE=MIN-MAX ... -- ARGS``: ``brokerside ARGS`` of another release.

What it supports of the features that are named is changed before anything else is imported; the others are as in this
release.
"""

from __future__ import annotations

import sys

from proxy.features import catalog
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, LevelRange
from spark_jobs import events


def main() -> None:
    split = sys.argv.index("--")
    changed = dict(catalog.SUPPORTED)
    for argument in sys.argv[1:split]:
        feature, _, levels = argument.partition("=")
        low, _, high = levels.partition("-")
        changed[feature] = LevelRange(int(low), int(high))
    catalog.SUPPORTED = changed
    events.SCHEMA_LEVEL = changed[AUDIT_EVENT_SCHEMA].max
    from proxy.cli import main as brokerside

    sys.argv[1:] = sys.argv[split + 1 :]
    brokerside()


if __name__ == "__main__":
    main()
