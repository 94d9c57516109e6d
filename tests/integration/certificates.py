"""Certificates of a test's own servers and clients."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def pem_files(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own signature for 127.0.0.1, and its key, in PEM form. Needs openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate),
            "-keyout", str(key),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return certificate, key
