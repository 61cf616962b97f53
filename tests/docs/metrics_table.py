"""The table of `docs/reference/metrics.md`, made from the metrics themselves.

Run `python -m tests.docs.metrics_table` to write it anew after a metric changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Counter, Histogram

from afterturn import metrics
from afterturn.metrics import ledger
from afterturn.status import KindStatus, MemoryStatus

from .pages import DOCS

PAGE: Final = DOCS / "reference" / "metrics.md"
_BEGIN: Final = "<!-- begin of the table made by tests/docs/metrics_table.py -->"
_END: Final = "<!-- end of the table -->"


def table() -> str:
    """One row a metric: name, type, labels, meaning."""
    rows = [f"| {' | '.join(row)} |" for row in (*_counted(), *_asked())]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def documented() -> str:
    """The table as the page has it."""
    return PAGE.read_text("utf-8").partition(_BEGIN)[2].partition(_END)[0].strip("\n")


def write() -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{after}", "utf-8")


def _counted() -> Iterator[tuple[str, str, str, str]]:
    """What each process counts and times."""
    for each in vars(metrics).values():
        if isinstance(each, Counter | Histogram):
            (family,) = each.describe()
            name = f"{family.name}_total" if isinstance(each, Counter) else family.name
            labels = ", ".join(f"`{label}`" for label in each._labelnames)
            yield f"`{name}`", family.type, labels, family.documentation


def _asked() -> Iterator[tuple[str, str, str, str]]:
    """What is read from the database at each scrape."""
    yield "`afterturn_database_up`", "gauge", "", "Whether the database answered."
    for family in ledger._families(MemoryStatus(jobs={"record": KindStatus()})):
        labels = sorted({label for sample in family.samples for label in sample.labels})
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"`{family.name}`", family.type, shown, family.documentation


if __name__ == "__main__":
    write()
