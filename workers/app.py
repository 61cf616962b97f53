"""The Celery app of workers, beat and Flower.

Messages are doorbells, so they are acknowledged before the work, none is fetched ahead, and none
is kept for redelivery: leases and attempts in PostgreSQL do that. Two of these settings are not a
matter of taste. With a message fetched but not acknowledged, Celery 5.7 ends the worker when the
broker goes away; and the broker's URL must win over CELERY_BROKER_URL, which the fleet's commands
therefore drop.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from celery import Celery

from afterturn.jobs.broker import APP_LOADER, shared_settings, worker_transport
from afterturn.jobs.names import RELEASE, SWEEP_QUEUE, SWEEP_TASK
from afterturn.settings import Settings

# The coroutine is cancelled first, then the main thread is interrupted, then the process killed.
TASK_SECONDS: Final = 900.0
_SOFT_LIMIT_SECONDS: Final = TASK_SECONDS + 30
_HARD_LIMIT_SECONDS: Final = TASK_SECONDS + 60

_CHILD_TASKS_MAX: Final = 2_000
_CHILD_KIB_MAX: Final = 400_000
_SWEEP_EXPIRES_SECONDS: Final = 60.0  # clocks of two machines may differ by some seconds


def build_app(settings: Settings) -> Any:
    """The app for these settings; `broker_url` must be set. Opens no connection."""
    if settings.broker_url is None:
        raise ValueError("settings without a broker_url: call with_servers first")
    app = Celery("afterturn", loader=APP_LOADER, fixups=())
    app.conf.update(shared_settings(settings.broker_url))
    app.conf.update(_worker_settings(settings))
    app.conf.update(_beat_settings(settings))
    return app


def _worker_settings(settings: Settings) -> dict[str, Any]:
    ours = ":" not in settings.extractor + settings.embedder
    return {
        "imports": (
            "tasks.turns",
            "tasks.lifecycle",
            "tasks.sweep",
            "tasks.probe",
            "workers.process",
        ),
        "broker_transport_options": worker_transport(),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_eta_task_limit": 100,
        "worker_max_tasks_per_child": _CHILD_TASKS_MAX,
        # A plugged-in model may need more than that for itself: no limit then, or every task
        # would end its process.
        "worker_max_memory_per_child": _CHILD_KIB_MAX if ours else None,
        "task_soft_time_limit": _SOFT_LIMIT_SECONDS,
        "task_time_limit": _HARD_LIMIT_SECONDS,
        "worker_send_task_events": True,
        "worker_redirect_stdouts": False,
        # Celery's soft shutdown sleeps its whole time even when the tasks end at once, so the
        # grace period is kept in `workers.shutdown`.
        "worker_soft_shutdown_timeout": 0.0,
    }


def _beat_settings(settings: Settings) -> dict[str, Any]:
    return {
        "beat_scheduler": "workers.beat:SweepScheduler",  # in memory: no schedule file
        "beat_max_loop_interval": 5,
        "beat_enable_remote_control": True,
        "beat_remote_control_max_tick_age": 30,
        "beat_schedule": {
            "sweep": {
                "task": SWEEP_TASK,
                "schedule": timedelta(seconds=settings.sweep_seconds),
                "kwargs": {"release": RELEASE},
                "options": {
                    "queue": SWEEP_QUEUE,
                    "expires": max(_SWEEP_EXPIRES_SECONDS, 4 * settings.sweep_seconds),
                },
            }
        },
    }
