"""What is counted and timed, for Prometheus. No label holds a scope, an id or a text.

A calling process mounts `REGISTRY` where its own metrics are:

    from prometheus_client import make_asgi_app
    from afterturn.metrics import REGISTRY
    app.mount("/metrics/memory", make_asgi_app(registry=REGISTRY))

It is a registry of our own, so nothing appears in the application's by surprise. A worker serves
the same metrics of all its processes, and the ledger's state, on AFTERTURN_METRICS_PORT.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY: Final = CollectorRegistry()

# From a memory hit to a model call that runs into its timeout.
_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


def _counter(name: str, says: str, *labels: str) -> Counter:
    return Counter(f"afterturn_{name}", says, labels, registry=REGISTRY)


def _seconds(name: str, says: str, *labels: str) -> Histogram:
    return Histogram(f"afterturn_{name}_seconds", says, labels, registry=REGISTRY, buckets=_SECONDS)


STAGED = _counter(
    "staged_turns",
    "Turns handed over, by verdict: staged, known (again), stale or erasing (both refused).",
    "verdict",
)
STAGE_SECONDS = _seconds("stage", "Handing over one turn, until it is on disk.")
RETRIEVE_SECONDS = _seconds("retrieve", "Retrieval in the calling process.")
CACHE_READS = _counter(
    "cache_reads", "Retrievals whose records were all held (hit) or read anew (miss).", "result"
)
LIFECYCLE_SECONDS = _seconds(
    "lifecycle", "From the request of a flush or forget to its end, whoever ran it.", "kind"
)
WORK_SECONDS = _seconds("work", "One ring's work, or one job's of a waiting caller.", "kind")
JOBS = _counter(
    "jobs",
    "What became of attempts at jobs: done; retry, dead; waits (for the model); stale, lost, "
    "misplaced (refused); erasing, busy (put off); superseded, requeued.",
    "kind",
    "outcome",
)
TAKEOVERS = _counter(
    "lease_takeovers", "Jobs taken over from a worker whose lease ran out.", "kind"
)
RINGS = _counter(
    "rings", "Ids announced to the workers: sent, failed (broker), dropped (no room).", "result"
)
IGNORED = _counter("ignored_messages", "Messages of no use to a worker, by reason.", "reason")


def _unlock_after_fork() -> None:
    """A fork copies a lock that another thread holds, and in the child nobody would release it."""
    for metric in (*_COUNTERS, *_HISTOGRAMS):
        metric._lock = Lock()
        for child in (metric, *getattr(metric, "_metrics", {}).values()):
            parts = [getattr(child, name, None) for name in ("_value", "_sum")]
            for value in (*parts, *getattr(child, "_buckets", ())):
                if hasattr(value, "_lock"):
                    value._lock = Lock()


_COUNTERS: Final = (STAGED, CACHE_READS, JOBS, TAKEOVERS, RINGS, IGNORED)
_HISTOGRAMS: Final = (STAGE_SECONDS, RETRIEVE_SECONDS, LIFECYCLE_SECONDS, WORK_SECONDS)
os.register_at_fork(after_in_child=_unlock_after_fork)
