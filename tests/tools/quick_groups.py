"""``python -m tests.tools.quick_groups ARGS``: ``brokerside ARGS``, which does soon what groups otherwise wait for.

A new fleet waits for its sidecars, a leader's sidecar before it takes a partition back, and rights are asked for again.
"""

from __future__ import annotations

from proxy.cli import main as brokerside
from proxy.features import controller
from proxy.fleet import election
from proxy.net import consumers

QUICK_GROUPS = ("-m", "tests.tools.quick_groups")


def main() -> None:
    controller.BOOTSTRAP_AFTER_MS = 500
    election.RETURN_AFTER_MS = 3000
    consumers.RIGHTS_INTERVAL = 0.4, 0.6
    brokerside()


if __name__ == "__main__":
    main()
