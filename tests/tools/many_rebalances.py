"""``python -m tests.tools.many_rebalances ARGS``: ``brokerside ARGS``, which rebalances a group as often as it changes.

In the product a group whose consumers come and go is slowed down after six rebalances in a minute. It takes partitions
back as ``quick_return`` does.
"""

from __future__ import annotations

from proxy.coordinator import rebalance
from tests.tools.quick_return import main as quick_return

FAST_REBALANCES = 1000


def main() -> None:
    """Run the command."""
    rebalance.FAST_REBALANCES = FAST_REBALANCES
    quick_return()


if __name__ == "__main__":
    main()
