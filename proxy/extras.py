"""The optional packages of a command: how to install them from where this installation came from.

The project is not on a package index. A command that names it there could install a package of a stranger.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

import msgspec

PROJECT = "brokerside"


class _Origin(msgspec.Struct):
    """The part of ``direct_url.json`` (PEP 610) that says where a package was installed from."""

    url: str = ""


def install_command(extra: str) -> str:
    """Return the command that installs ``extra``: from the checkout or wheel that pip has recorded, else from ``.``."""
    source = _source() or "."
    return shlex.join([sys.executable, "-m", "pip", "install", f"{source}[{extra}]"])


def missing(module: str, extra: str) -> str:
    """Return the rest of the sentence about what needs ``module``, a package of ``extra``."""
    where = "" if _source() else " (in a checkout of Brokerside)"
    return f"needs {module}, which is not installed; run: {install_command(extra)}{where}"


def _source() -> str | None:
    """Return the path or URL that this package was installed from; None where nothing has recorded it."""
    try:
        recorded = distribution(PROJECT).read_text("direct_url.json")
        url = msgspec.json.decode(recorded or "{}", type=_Origin).url
    except (PackageNotFoundError, msgspec.DecodeError):
        return None
    if not url:
        return None
    return unquote(urlsplit(url).path) if url.startswith("file:") else f"{PROJECT} @ {url}"
