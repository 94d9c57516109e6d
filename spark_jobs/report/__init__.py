"""One page of HTML that shows people what the tables say: ``page``. Self-contained, readable offline and printed.

sections.py    what is told, in which order: questions, charts and a sentence for each.
charts.py      the charts, as Vega-Lite has them.
formatting.py  numbers, sizes and texts as people read them, escaped.
page.py        the page around them; page.css and page.js are inside of it.
"""

from __future__ import annotations

from spark_jobs.report.page import page

__all__ = ["page"]
