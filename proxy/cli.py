"""The ``brokerside`` command. Only this module and ``proxy.commands`` combine the proxy, the observers and the jobs.

Each command imports what it needs when it runs, since a sidecar should start fast.

Exit codes: 0 success, 1 failure (one sentence on stderr), 2 wrong usage.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from proxy import __version__
from proxy.commands import local, metadata, sidecar, tables
from proxy.commands.arguments import command, commands_of
from proxy.errors import BrokersideError
from spark_jobs.errors import JobError


def main() -> None:
    """Entry point of the command."""
    arguments = vars(_parser().parse_args())
    act, extra = arguments.pop("act"), arguments.pop("extra", "")
    try:
        sys.exit(act(**arguments))
    except (BrokersideError, JobError) as error:
        print(f"brokerside: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if not extra:
            raise
        needs = f"this command needs {error.name}, which is not installed: pip install 'brokerside[{extra}]'"
        print(f"brokerside: {needs}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def version() -> None:
    """Print the version."""
    print(__version__)


def _parser() -> ArgumentParser:
    """Return the parser with all commands. ``act`` is the function that gets the arguments of a command."""
    parser = ArgumentParser("brokerside", description="A sidecar for Apache Kafka brokers.", allow_abbrev=False)
    commands = commands_of(parser)
    command(commands, "version", version)
    for each in (sidecar, metadata, tables, local):
        each.add(commands)
    return parser


if __name__ == "__main__":
    main()
