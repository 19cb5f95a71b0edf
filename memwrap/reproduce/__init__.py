"""The paper's tables: its numbers, our runs, and a comparison of the two."""

from memwrap.reproduce.comparison import Comparison, Verdict, compare, decide
from memwrap.reproduce.published import Cell, Published, published_table, table_names
from memwrap.reproduce.records import Failure, Records, RunRecord, read_records
from memwrap.reproduce.tables import make_rows, rows_from_records
from memwrap.reproduce.tasks import Selection, Task

__all__ = [
    "Cell",
    "Comparison",
    "Failure",
    "Published",
    "Records",
    "RunRecord",
    "Selection",
    "Task",
    "Verdict",
    "compare",
    "decide",
    "make_rows",
    "published_table",
    "read_records",
    "rows_from_records",
    "table_names",
]
