"""Programs that tests and benchmarks need beside this project's own: from Debian, from Go modules.

They are fetched into the cache folder where they are not installed; nothing on the machine is changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from proxy.local.jars import cache_dir

TIMEOUT = 1200.0
"""Seconds for a download or a build; that of kube-apiserver takes the longest, about eleven minutes."""

SUITE = "trixie"
"""Of Debian, for what this machine's own does not have."""

FOLDERS = ("usr/bin", "usr/sbin")
"""Where Debian's packages have their programs."""


class MissingError(Exception):
    """A program cannot be had here; the text says why, and what to do."""


def debian(program: str, packages: list[str]) -> tuple[Path, Path | None]:
    """Return the path of ``program``, and the folder its packages were unpacked in, if they had to be.

    Raises MissingError.
    """
    installed = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if installed:
        return Path(installed), None
    root = cache_dir() / "bench" / f"debian-{program}"
    if not root.exists():
        hint = f"not here; Debian: apt-get update && apt-get install {' '.join(packages)}"
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise MissingError(hint)
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        planned = _run(["apt-get", "--simulate", "--no-install-recommends", "install", *packages], part, hint)
        needed = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
        _run(["apt-get", "-o", "APT::Sandbox::User=root", "download", *needed], part, hint)
        for archive in part.glob("*.deb"):
            _run(["dpkg", "-x", archive.name, "."], part, hint)
            archive.unlink()
        part.rename(root)
    found = next((root / folder / program for folder in FOLDERS if (root / folder / program).exists()), None)
    if found is None:
        raise MissingError(f"no {program} in the packages {' '.join(packages)}")
    return found, root


def newer_debian(program: str, packages: list[str]) -> list[str]:
    """Return the command that runs ``program`` of Debian's ``SUITE`` here, with the libraries that it has there.

    Raises MissingError.
    """
    root = cache_dir() / "bench" / f"{SUITE}-{program}"
    if not root.exists():
        maker, unpacked = debian("mmdebstrap", ["mmdebstrap", "debian-archive-keyring"])
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        command = [str(maker), "--variant=extract", f"--include={','.join(packages)}", SUITE, str(part), mirror()]
        _run(command, root.parent, f"{' '.join(packages)} of Debian {SUITE} by mmdebstrap", environment_of(unpacked))
        part.rename(root)
    loader = next(root.glob("usr/lib*/ld-linux*"))
    libraries = ":".join(map(str, root.glob("usr/lib/*-linux-gnu")))
    return [str(loader), "--library-path", libraries, str(root / "usr/sbin" / program)]


def mirror() -> str:
    """Return where this machine takes Debian's packages from. Raises MissingError."""
    targets = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], Path.cwd(), "the mirror of Debian")
    found = [line for line in targets.split() if line.rstrip("/").endswith("/debian")]
    if not found:
        raise MissingError("apt-get knows no mirror of Debian")
    return found[0]


def environment_of(root: Path | None) -> dict[str, str]:
    """Return the variables with which programs of ``debian``'s second result find each other and their libraries."""
    if root is None:
        return {}
    programs = [str(root / folder) for folder in FOLDERS]
    return {
        "PATH": ":".join([*programs, os.environ.get("PATH", "")]),
        "LD_LIBRARY_PATH": ":".join(map(str, root.glob("usr/lib/*-linux-gnu"))),
    }


def go(program: str, package: str) -> Path:
    """Return the path of a Go program, built from the newest version of ``package``. Raises MissingError."""
    folder = cache_dir() / "bench" / "go"
    path = folder / program
    if not path.exists():
        command = ["go", "install", f"{package}@latest"]
        if shutil.which("go") is None:
            raise MissingError(f"needs Go: {' '.join(command)}")
        folder.mkdir(parents=True, exist_ok=True)
        _run(command, folder, " ".join(command), {"GOBIN": str(folder), "GOFLAGS": "-buildvcs=false"})
        (folder / package.rpartition("/")[2]).rename(path)
    return path


def go_module(name: str, version: str) -> Path:
    """Return the folder with the files of a Go module, which Go checks against its checksum database.

    Raises MissingError.
    """
    command = ["go", "mod", "download", "-json", f"{name}@v{version}"]
    if shutil.which("go") is None:
        raise MissingError(f"needs Go: {' '.join(command)}")
    return Path(json.loads(_run(command, Path.cwd(), " ".join(command)))["Dir"])


def go_build(folder: Path, program: str, package: str) -> None:
    """Build ``package``, of a module that the go.mod in ``folder`` requires, as ``program`` in that folder.

    Raises MissingError.
    """
    part = f"{program}.part"
    command = ["go", "build", "-mod=mod", "-buildvcs=false", "-ldflags=-s -w", "-o", part, package]
    _run(command, folder, " ".join(command))
    (folder / part).rename(folder / program)


def said_version(command: list[str], pattern: str, environment: dict[str, str] | None = None) -> str:
    """Return what ``pattern`` finds in the output of ``command``; "unknown" if nothing, or if it cannot be run."""
    try:
        done = subprocess.run(
            command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=10, check=False
        )
    except OSError:
        return "unknown"
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"


def _run(command: list[str], folder: Path, hint: str, environment: dict[str, str] | None = None) -> str:
    """Return what it prints; raise MissingError with ``hint`` and its last line where it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"LC_ALL": "C"} | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{hint} ({error})") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise MissingError(f"{hint} ({said[-1].strip()})")
    return done.stdout
