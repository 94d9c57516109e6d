"""The HTML report of the tables: ``render_page``. The page is self-contained and can be read offline or printed.

sections.py    the sections of the report: a finding, charts and a table for each.
charts.py      the charts as Vega-Lite specifications.
formatting.py  formats numbers, sizes and texts, and escapes them.
page.py        the page with all sections; page.css and page.js are embedded in it.
"""

from __future__ import annotations

from spark_jobs.report.page import render_page

__all__ = ["render_page"]
