from pathlib import Path

import pytest

from proxy.errors import LocalError
from proxy.local.java import java, parse_version


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "21.0.1" 2023-10-17', 21),
        ("command not found", None),
        ("", None),
    ],
)
def test_versions(banner: str, version: int | None) -> None:
    assert parse_version(banner) == version


def fake_java(folder: Path, banner: str) -> Path:
    """A program that says ``banner`` as Java does, on stderr."""
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def no_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_java_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_java(tmp_path / "bin", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java() == path


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    chosen = fake_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java() == chosen


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match=r"no Java .* install Java 17 or newer"):
        java()


def test_java_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_java(tmp_path / "old" / "bin", 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(LocalError, match=r"is Java 11, and Java 17 or newer is needed; .* set JAVA_HOME") as raised:
        java()
    assert str(path) in str(raised.value)


def test_java_home_without_a_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="correct it or unset it"):
        java()


def test_a_java_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "bin", "hello")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(LocalError, match="does not say its version"):
        java()
