from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from observers.ledger import LEDGER_FILE, SLOT_BYTES, Ledger, LedgerEntry, LedgerLocked

ENTRY = LedgerEntry(7, "0.1.0", observed=9, taken=8, hidden=3, given=5, lost=1, settled=2)


@pytest.mark.promise("audit-delivery.md", "A folder of the spool is adopted only once its process is gone.")
def test_what_was_written_last_is_read_once_its_process_is_gone(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", ENTRY)
    for given in range(6, 20):
        ledger.write_entry(replace(ENTRY, given=given, closed=given == 19))
    with pytest.raises(LedgerLocked):
        Ledger.adopt(tmp_path / "a")
    ledger.close()
    adopted, entry = Ledger.adopt(tmp_path / "a")
    assert entry == replace(ENTRY, given=19, closed=True)
    with pytest.raises(LedgerLocked):
        Ledger.adopt(tmp_path / "a")
    adopted.write_entry(replace(entry, given=21))
    adopted.close()
    assert Ledger.adopt(tmp_path / "a")[1].given == 21


@pytest.mark.promise("audit-delivery.md", "Only its owner may read the folder of a spool and the ledger in it.")
def test_only_its_owner_may_look_into_the_folder(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a", replace(ENTRY, sidecar_version="1" * 100)).close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / LEDGER_FILE).stat().st_mode & 0o777 == 0o600
    assert Ledger.adopt(tmp_path / "a")[1].sidecar_version == "1" * 32, "a long version is cut"


def test_a_place_that_is_not_whole_leaves_the_other(tmp_path: Path) -> None:
    for place, left in ((0, 5), (1, 6)):
        folder = tmp_path / str(place)
        ledger = Ledger.create(folder, ENTRY)  # into the second place
        ledger.write_entry(replace(ENTRY, given=6))
        ledger.close()
        with (folder / LEDGER_FILE).open("r+b") as file:
            file.seek(place * SLOT_BYTES + 30)
            file.write(b"\xff")
        assert Ledger.adopt(folder)[1].given == left
    for held in (b"", b"\0" * 1024, b"BSL9" + b"\0" * 1020):
        (tmp_path / LEDGER_FILE).write_bytes(held)
        with pytest.raises(ValueError, match="not a ledger"):
            Ledger.adopt(tmp_path)
