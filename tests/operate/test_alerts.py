"""The alert rules name metrics and labels that exist."""

from __future__ import annotations

import re

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from afterturn.jobs.names import KINDS
from afterturn.metrics import REGISTRY
from afterturn.metrics.ledger import LedgerCollector
from afterturn.settings import Settings
from tests.operate.deployment import ROOT

RULES = yaml.safe_load((ROOT / "docs" / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
LABELS = re.compile(r"(afterturn_[a-z_]+)(?:\{([^}]*)\})?")


def _names(collector: Collector | CollectorRegistry) -> dict[str, set[str]]:
    """Name of a series → the names of its labels."""
    found: dict[str, set[str]] = {}
    for family in collector.collect():
        labels = set(getattr(family, "_labelnames", ()))
        for name in (family.name, f"{family.name}_total"):
            found[name] = labels | {label for s in family.samples for label in s.labels}
    return found


@pytest.fixture
def known(settings: Settings) -> dict[str, set[str]]:
    """All series of a worker."""
    labels = {m._name: set(m._labelnames) for m in REGISTRY._collector_to_names}  # type: ignore[attr-defined]
    counted = {f"{name}_total": names for name, names in labels.items()}
    return {**_names(LedgerCollector(settings)), **counted}


def test_every_rule_asks_for_what_is_served(known: dict[str, set[str]]) -> None:
    """Each name exists, each label of a selector too; and each rule says what to do."""
    for rule in RULES:
        for name, selector in LABELS.findall(rule["expr"]):
            assert name in known, (rule["alert"], name)
            for label in re.findall(r"(\w+)=", selector):
                assert label in known[name] | {"kind", "state"}, (rule["alert"], label)
        assert rule["annotations"]["summary"].endswith((".", "?"))
        assert rule["labels"]["severity"] in ("page", "ticket")
    kinds = {k for rule in RULES for k in re.findall(r'kind="(\w+)"', rule["expr"])}
    assert kinds <= set(KINDS)


def test_a_name_that_is_not_served_would_be_found(known: dict[str, set[str]]) -> None:
    """The comparison is one."""
    assert "afterturn_dead_jobs" in known
    assert "afterturn_dead_job" not in known
    assert known["afterturn_jobs_total"] == {"kind", "outcome"}
