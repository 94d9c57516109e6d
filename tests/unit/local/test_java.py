"""Which Java is used, and what is said where there is none that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import LocalError
from proxy.local.java import java, parse_version


def fake_java(folder: Path, banner: str) -> Path:
    """A program that says ``banner`` as Java does, on stderr."""
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    path.chmod(0o755)
    return path


def test_versions_are_read_of_every_banner() -> None:
    for banner, version in (
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "21.0.1" 2023-10-17', 21),
        ("command not found", None),
        ("", None),
    ):
        assert parse_version(banner) == version, banner


@pytest.mark.promise("install.md", "Java 17 or newer is taken of JAVA_HOME or the path; others are refused.")
def test_java_home_wins_over_the_path_and_an_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match=r"no Java .* install Java 17 or newer"):
        java()
    of_path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert java() == of_path
    chosen = fake_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java() == chosen
    old = fake_java(tmp_path / "old" / "bin", 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(LocalError, match=r"is Java 11, and Java 17 or newer is needed; .* set JAVA_HOME") as raised:
        java()
    assert str(old) in str(raised.value)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="correct it or unset it"):
        java()
    fake_java(tmp_path / "none" / "bin", "hello")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(LocalError, match="does not say its version"):
        java()
