"""What is built of a small project like this one, and the error where nothing can be."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from hatchling.bridge.app import Application

from proxy.compiled import build as builder
from proxy.compiled.build import BuildHook, CannotBuild, build, compiler

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


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
@pytest.mark.slow
@pytest.mark.promise("CONTRIBUTING.md", "The build compiles in place, and again only modules whose sources changed.")
def test_modules_are_built_in_place_and_again_only_where_they_changed(project: Path) -> None:
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
@pytest.mark.promise("install.md", "A wheel has the compiled modules, and the tag of its platform.")
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


@pytest.mark.promise("install.md", "Where a wheel cannot be built, one sentence says what is missing, and its package.")
def test_without_a_compiler_or_headers_a_wheel_fails_with_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CannotBuild, match="no-such-compiler"):
        build(project, project)
    assert os.environ["CC"] == "no-such-compiler"
    monkeypatch.delenv("CC")
    with monkeypatch.context() as patch:
        patch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(CannotBuild, match=r"there is no .*/Python\.h; .* the package python3-dev or python3-devel"):
            build(project, project)

    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        hook(project).initialize("standard", {"force_include": {}})
    assert ended.value.code
    out, err = capfd.readouterr()
    expected = (
        "brokerside: its compiled modules cannot be built: there is no C compiler (cc, gcc, clang) on PATH; Debian: "
        "apt-get install gcc libc6-dev"
    )
    assert " ".join((out + err).split()) == expected

    monkeypatch.setattr(importlib.util, "find_spec", {"ziglang": "found"}.get)
    assert compiler() == f"{sys.executable} -m ziglang cc", "the package index has one"
    assert "CC" not in os.environ
