"""Plain tables for people, without a library that takes time to import."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Return rows below ``head``. Columns of ``left`` are left-aligned, the others, which are numbers, right-aligned.

    In a terminal that is narrower than the table each row continues on indented lines.
    """
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return "\n".join(fold(cells) for cells in padded)


def fold(texts: Iterable[str], gap: str = "  ") -> str:
    """Return ``texts`` in one line, or in as many as the terminal is narrow; those after the first are indented."""
    width, lines = terminal_width(), list[str]()
    for text in texts:
        if lines and len(lines[-1]) + len(gap) + len(text.rstrip()) <= width:
            lines[-1] += gap + text
        else:
            lines.append(gap + text if lines else text)
    return "\n".join(map(str.rstrip, lines))


def terminal_width() -> float:
    """Return how many characters fit in a line of standard output; infinity if that is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else float("inf")


def printable(text: str) -> str:
    """Return ``text`` without characters that would control a terminal: these are shown as escapes."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
