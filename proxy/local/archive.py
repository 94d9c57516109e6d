"""Class-data archives: a JVM that maps its classes from a file starts Kafka in about half the time.

The first node that is stopped in the ordinary way leaves the archive; every later start uses it. One archive belongs
to one Java and one class path. Without one, or with one the JVM refuses, a node only starts more slowly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from proxy.local.jars import cache_dir
from proxy.local.java import java_banner

# A refused archive, or a class that cannot be in it, is no concern of whoever reads the output.
_QUIET = "-Xlog:cds*=off"


def archive_of(java: Path, jars: Sequence[Path]) -> Path:
    """Return where the archive of ``jars``, in this order, is or will be."""
    return _folder() / f"{_short_hash(java_banner(java), java, *jars)}.jsa"


def archive_options(archive: Path) -> list[str]:
    """Return the JVM options of a run that uses the archive, if there is one."""
    return [f"-XX:SharedArchiveFile={archive}", _QUIET] if archive.exists() else []


def archive_or_draft_options(archive: Path, home: Path) -> list[str]:
    """Return the JVM options of a run that uses the archive, or else leaves a draft of it under the name of ``home``.

    Returns none if it can do neither.
    """
    if archive.exists():
        return archive_options(archive)
    draft = archive.with_name(f"{archive.stem}-{_short_hash(home)}.draft")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
    except OSError:
        return []
    return [f"-XX:ArchiveClassesAtExit={draft}", _QUIET]


def publish_or_discard(home: Path, *, complete: bool) -> None:
    """Publish the draft that the ended node in ``home`` left, or remove it where it was killed while writing."""
    for draft in _folder().glob(f"*-{_short_hash(home)}.draft"):
        # What cannot be kept is made again by a later run.
        with suppress(OSError):
            if complete:
                draft.replace(draft.with_name(draft.stem.partition("-")[0] + ".jsa"))
            else:
                draft.unlink()


def _folder() -> Path:
    return cache_dir() / "classes"


def _short_hash(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
