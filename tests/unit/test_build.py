"""What is built of a small project like this one, and what is told where nothing can be."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hatchling.bridge.app import Application

from proxy.compiled import build as builder
from proxy.compiled.build import BuildHook, NotBuilt, build

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROKERSIDE_PURE", raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("proxy", "proxy/compiled", "observers"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "proxy/compiled/twice.pxd").write_text("cdef int twice(int number) noexcept\n")
    (tmp_path / "proxy/compiled/twice.pyx").write_text(
        "# cython: language_level=3\ncdef int twice(int number) noexcept:\n    return 2 * number\n"
    )
    (tmp_path / "observers/four.pyx").write_text("# cython: language_level=3\nanswer = 2 + 2\n")
    return tmp_path


def hook(project: Path) -> BuildHook:
    return BuildHook(str(project), {}, None, None, str(project), "wheel", Application())  # type: ignore[arg-type]


@needs_compiler
def test_modules_are_built_in_place_and_nothing_else_lies_beside_them(project: Path) -> None:
    built = build(project, project)
    assert {name.split(".")[0] for name in built} == {"proxy/compiled/twice", "observers/four"}
    [library] = (project / "observers").glob("*.so")
    spec = importlib.util.spec_from_file_location("observers.four", library)
    assert spec is not None
    assert spec.loader is not None
    four: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(four)
    assert four.answer == 4
    assert not [*project.glob("proxy/**/*.c"), *project.glob("observers/*.c")]


@needs_compiler
def test_the_command_builds_only_what_changed(project: Path) -> None:
    shutil.copy(builder.__file__, project / "proxy/compiled")

    def times() -> dict[str, int]:
        command = [sys.executable, "-m", "proxy.compiled.build"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "brokerside: 2 compiled modules"
        return {path.name.split(".")[0]: path.stat().st_mtime_ns for path in project.glob("*/**/*.so")}

    before = times()
    (project / "proxy/compiled/twice.pxd").write_text("cdef int twice(int number) noexcept  # changed\n")
    after = times()
    assert [name for name in after if after[name] != before[name]] == ["twice"]


@needs_compiler
def test_a_wheel_gets_the_modules_and_the_tag_of_its_platform(project: Path) -> None:
    data: dict[str, Any] = {"force_include": {}}
    one = hook(project)
    one.initialize("standard", data)
    assert not [*project.glob("**/*.so")]
    assert data["infer_tag"]
    assert not data["pure_python"]
    assert all(Path(path).is_file() for path in data["force_include"])
    one.finalize("standard", data, "")
    assert not any(Path(path).exists() for path in data["force_include"])


def test_without_a_compiler_a_wheel_is_pure_and_one_line_says_why(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    data: dict[str, Any] = {"force_include": {}}
    one = hook(project)
    one.initialize("standard", data)
    one.finalize("standard", data, "")
    assert data == {"force_include": {}}
    out, err = capfd.readouterr()
    assert "brokerside: pure Python, without compiled modules: " in out + err
    assert "no-such-compiler" in out + err


def test_pure_can_be_asked_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERSIDE_PURE", "1")
    with pytest.raises(NotBuilt, match="BROKERSIDE_PURE"):
        build(project, project)


def test_a_mistake_in_a_source_is_an_error(project: Path) -> None:
    (project / "observers/four.pyx").write_text("# cython: language_level=3\nanswer = = 4\n")
    with pytest.raises(Exception, match=r"four\.pyx"):
        build(project, project)
