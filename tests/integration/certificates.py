"""Certificates of a test's own brokers."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
