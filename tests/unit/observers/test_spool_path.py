"""What ``check-config`` says of a spool that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observers.errors import ObserverError
from observers.spool_runs import SpoolSettings, check_path
from tests.unit.observers.test_own_settings import check, config_file

NOBODY = 65534


@contextmanager
def an_ordinary_user() -> Iterator[int]:
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield os.geteuid()
    finally:
        os.seteuid(user)


def refused(path: Path) -> str:
    with pytest.raises(ObserverError) as raised:
        check_path(SpoolSettings(str(path), 1), "audit.spool.path")
    return str(raised.value)


def test_a_spool_that_can_be_made_is_not_made_by_the_check(tmp_path: Path) -> None:
    check_path(SpoolSettings(str(tmp_path / "spool" / "of-1"), 1), "audit.spool.path")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "spool"):
        assert refused(path) == f"audit.spool.path: {path} cannot be written: {tmp_path}/file is not a folder"


def test_a_folder_of_another_user_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "of-another"
    folder.mkdir()
    folder.chmod(0o555)
    with an_ordinary_user() as user:
        said = refused(folder / "spool")
    assert said.startswith(f"audit.spool.path: {folder}/spool cannot be written: user {user} may not write to ")


def test_check_config_finds_that_of_opentelemetry(tmp_path: Path) -> None:
    name = "observers.opentelemetry:OpenTelemetryLogsObserver"
    (tmp_path / "spool").write_text("")
    own = {"endpoint": "http://127.0.0.1:4", "spool.path": str(tmp_path / "spool")}
    done = check(config_file(tmp_path, {name: own}, name))
    assert (done.returncode, done.stdout) == (1, "")
    assert name in done.stderr
    assert f" spool.path: {tmp_path}/spool cannot be written: {tmp_path}/spool is not a folder" in done.stderr
    assert "audit.spool.path" not in done.stderr


def test_check_config_finds_it(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("")
    path = config_file(tmp_path, {}, "observers.audit:AuditObserver")
    path.write_text(path.read_text() + f"audit: {{spool.path: {tmp_path}/spool}}\n")
    done = check(path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"audit.spool.path: {tmp_path}/spool cannot be written: {tmp_path}/spool is not a folder" in done.stderr
