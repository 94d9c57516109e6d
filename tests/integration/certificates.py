"""Certificates of a test's own servers and clients."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.local.java import java


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key store for 127.0.0.1, and its certificate; Java's own tool makes them."""
    store, ca = folder / "broker.p12", folder / "ca.pem"
    keytool = Path(java()).resolve().with_name("keytool")
    common = [str(keytool), "-keystore", str(store), "-storepass", "changeit", "-alias", "broker"]
    subprocess.run(
        [*common, "-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    subprocess.run([*common, "-exportcert", "-rfc", "-file", str(ca)], check=True, capture_output=True, timeout=60)
    return store, ca


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
