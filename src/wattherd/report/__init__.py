"""Run directories turned into tables, plots and one self-contained page.

Reads what `wattherd sim pack --out DIR` wrote; knows nothing of how it was simulated.
"""

from wattherd.report.compare import CompareRow, SeedSpread, comparison_table
from wattherd.report.page import write_report
from wattherd.report.runs import RunSet, load_runs

__all__ = ["CompareRow", "RunSet", "SeedSpread", "comparison_table", "load_runs", "write_report"]
