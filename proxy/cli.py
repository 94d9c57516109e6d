"""The ``brokerside`` command. Only this module and ``proxy.commands`` combine the proxy, the observers and the jobs.

Each command imports what it needs when it runs, since a sidecar should start fast.

Exit codes: 0 success, 1 failure (one sentence on stderr), 2 wrong usage, 141 nobody reads the output any more (a pipe
to ``head``).
"""

from __future__ import annotations

import os
import select
import sys
from functools import partial

from proxy import __version__
from proxy.commands import features, groups, local, metadata, observers, sidecar, tables
from proxy.commands.arguments import CommandParser, command, commands_of
from proxy.commands.completion import SHELLS, completion_script
from proxy.errors import BrokersideError
from spark_jobs.errors import JobError


def main() -> None:
    """Entry point of the command."""
    arguments = vars(_parser().parse_args())
    act, extra = arguments.pop("act"), arguments.pop("extra", "")
    try:
        status = act(**arguments)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        if not _output_is_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more on exit
        sys.exit(141)
    except (BrokersideError, JobError) as error:
        print(f"brokerside: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if not extra:
            raise
        from proxy.extras import missing

        print(f"brokerside: this command {missing(error.name or 'a package', extra)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _output_is_closed() -> bool:
    """Whether standard output is a pipe that nobody reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def version() -> None:
    """Print the version."""
    print(__version__)


def completion(parser: CommandParser, shell: str) -> None:
    """Print the script that completes commands and options in a shell: eval "$(brokerside completion bash)"."""
    print(completion_script(parser, shell))


def _parser() -> CommandParser:
    """Return the parser with all commands. ``act`` is the function that gets the arguments of a command."""
    parser = CommandParser("brokerside", description="A sidecar for Apache Kafka brokers.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"brokerside {__version__}")
    commands = commands_of(parser)
    command(commands, "version", version)
    made = command(commands, "completion", completion)
    made.set_defaults(act=partial(completion, parser))
    made.add_argument("shell", choices=SHELLS, help="The shell.")
    for each in (sidecar, observers, metadata, features, groups, tables, local):
        each.add(commands)
    return parser


if __name__ == "__main__":
    main()
