"""docs/examples/tables.ipynb runs from top to bottom, and is committed without what it gave."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.report import sample

NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "tables.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def given(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: what its last expression gives is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if last else None


@pytest.mark.promise("queries.md", "Every cell of the notebook of examples runs, and shows something.")
def test_every_cell_runs_and_shows_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample.write_all(tmp_path)
    monkeypatch.setenv("BROKERSIDE_TABLES", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    setup, completeness, table, bars, lines = [given("".join(cell["source"]), names) for cell in cells()]
    assert setup is None
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells()), (
        "committed without outputs"
    )
    assert completeness["events"].sum() == 775_800
    assert list(table.columns) == ["clicks", "invoices", "orders", "payments"]
    assert len(table) == sample.DAYS
    for chart, marks in ((bars, len(sample.TOPICS[:4]) * sample.DAYS), (lines, 2 * 24)):
        svg = chart._repr_mimebundle_()["image/svg+xml"]
        assert svg.count('aria-roledescription="bar"') + svg.count('aria-roledescription="point"') == marks
