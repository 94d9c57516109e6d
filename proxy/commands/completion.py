"""The command that prints shell completions."""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction
from contextlib import suppress
from pathlib import Path

SHELLS = ("bash", "zsh", "tcsh", "fish")


def completion_script(parser: ArgumentParser, shell: str) -> str:
    """Return the script that completes the commands and options of ``parser`` in ``shell``, one of ``SHELLS``."""
    import shtab

    _complete_values(parser)
    return shtab.complete(parser, shell)


def _complete_values(parser: ArgumentParser) -> None:
    """Let paths be completed as files, and ``--ask`` as names of saved queries."""
    import shtab

    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for command in action.choices.values():
                _complete_values(command)
        elif action.type is Path or action.metavar == "PATH":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
        elif action.dest == "ask":
            with suppress(ModuleNotFoundError):
                from spark_jobs.saved_queries import SAVED_QUERIES

                action.choices = list(SAVED_QUERIES)
