"""The files that the complete example of docs/config.md names."""

from __future__ import annotations

from pathlib import Path

from tests.tools.authority import Authority


def write_example_files(folder: Path, password: str, keys: str) -> None:
    """``password``: of librdkafka; ``keys``: a file of HMAC keys."""
    (folder / "secrets").mkdir()
    (folder / "secrets" / "internal-password").write_text(password)
    (folder / "secrets" / "registry-keys").write_text(keys)
    (folder / "secrets" / "audit-keys").write_text(keys)
    authority = Authority(folder / "tls")
    Authority(folder / "tls", "clients-ca")
    for name in ("kafka-1", "sidecar"):
        authority.issue(name, f"CN={name}", password="of-the-key")
        (folder / "tls" / f"{name}.password").write_text("of-the-key\n")
