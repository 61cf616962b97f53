"""The reference says what the code says."""

from __future__ import annotations

import re

import afterturn

from . import cli_page, metrics_table
from .pages import DOCS, ROOT, pages

ROLES = {"afterturn_app", "afterturn_worker", "afterturn_auditor"}


def test_the_command_line_is_documented_as_it_is() -> None:
    """Every command, option and example, in the words of its help."""
    hint = "write the page anew: python -m tests.docs.cli_page"
    assert cli_page.PAGE.read_text("utf-8").splitlines() == cli_page.page().splitlines(), hint


def test_every_metric_is_documented_as_it_is() -> None:
    """Name, type, labels and meaning."""
    hint = "write the table anew: python -m tests.docs.metrics_table"
    assert metrics_table.documented().splitlines() == metrics_table.table().splitlines(), hint


def test_every_metric_that_a_page_names_exists() -> None:
    """Also in prose and in the rules for alerts, where nobody would miss what is gone."""
    known = set(re.findall(r"^\| `(\w+)` \|", metrics_table.table(), re.MULTILINE))
    for page in [*pages(), DOCS / "alerts.yml"]:
        named = set(re.findall(r"\bafterturn_[a-z_]+[a-z]\b", page.read_text("utf-8")))
        of_histograms = {re.sub("_(bucket|count|sum)$", "", name) for name in named - known}
        assert of_histograms - known <= ROLES, page


def test_every_public_name_is_in_the_reference() -> None:
    """What `afterturn` exports stands on a page, by the module it comes from."""
    shown = {
        name.rpartition(".")[2]
        for page in (DOCS / "reference" / "api").glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)
    }
    exported = set(afterturn.__all__) - {"MAX_DEPTH"}  # the page of scopes states the number
    ports = {name for name in exported if name.startswith("Memory") and name.endswith("Port")}
    whole_modules = {*ports, "CandidateScan", "EmbeddingProvider"}
    assert exported - whole_modules <= shown
    assert {"ports", "errors", "generations"} <= shown


def test_every_table_is_explained() -> None:
    """The page of tables has a row for each table of the schema, and none that is gone."""
    schema = (ROOT / "schema" / "schema.sql").read_text("utf-8")
    tables = set(re.findall(r"^create table afterturn\.(\w+)", schema, re.MULTILINE))
    page = (DOCS / "reference" / "tables.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == tables
