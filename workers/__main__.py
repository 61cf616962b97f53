"""`python -P -m workers worker|beat|flower`, with the fleet's folder on PYTHONPATH.

`afterturn.fleet` builds these command lines. Exit code 78 says that starting again will not help,
75 that it may.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afterturn.errors import AfterturnError, ConfigurationError, NotMigrated
from afterturn.fleet import EXIT_MISCONFIGURED, EXIT_UNAVAILABLE, queue_names, with_servers
from afterturn.jobs.names import ALL_QUEUES
from afterturn.settings import PREFIX, Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part of the fleet until it is told to stop; its exit code."""
    options = _parser().parse_args(argv)
    # Until the part has handlers of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        settings = with_servers(Settings.load(), database=options.role == "worker")
        if options.role == "worker":
            return _worker(settings, options)
        if options.role == "beat":
            return _beat(settings)
        if options.role == "metrics":
            return _metrics(settings, options.directory)
        return _flower(settings)
    except AfterturnError as error:
        print(f"afterturn {options.role}: {error}", file=sys.stderr, flush=True)
        is_final = isinstance(error, (ConfigurationError, NotMigrated))
        return EXIT_MISCONFIGURED if is_final else EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workers", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    worker = roles.add_parser("worker")
    worker.add_argument("--queues", default=",".join(ALL_QUEUES))
    worker.add_argument("--concurrency", type=int)
    worker.add_argument("--name")
    worker.add_argument("--ready-file", type=Path)
    worker.add_argument("--metrics-port", type=int)
    roles.add_parser("beat")
    metrics = roles.add_parser("metrics")
    metrics.add_argument("--directory", type=Path, required=True)
    roles.add_parser("flower")
    return parser


def _hand_down(settings: Settings) -> None:
    """Child processes load their settings from the environment, the URLs found here included."""
    os.environ[f"{PREFIX}DATABASE_URL"] = str(settings.database_url)
    os.environ[f"{PREFIX}BROKER_URL"] = str(settings.broker_url)


def _worker(settings: Settings, options: argparse.Namespace) -> int:
    from workers import metering

    queues = queue_names(options.queues)
    _hand_down(settings)
    if options.metrics_port is not None:
        settings = settings.model_copy(update={"metrics_port": options.metrics_port})
    metering.start(settings)
    # The extractor may live in the application's directory; its own `tasks` must not win.
    sys.path.append(str(Path.cwd()))

    from celery import signals
    from celery.utils.nodenames import host_format

    from workers import control, database, logs, shutdown
    from workers.app import build_app
    from workers.parts import check_parts

    database.await_database(settings, check_parts(settings))
    app = build_app(settings)
    shutdown.install()
    logs.install(settings)
    if settings.flower_read_only:
        control.restrict()
    if (ready_file := options.ready_file) is not None:

        def on_ready(**_: Any) -> None:
            ready_file.write_text(str(os.getpid()))

        signals.worker_ready.connect(on_ready, weak=False)
    # JSON only, so root is no danger that Celery would have to warn of.
    warnings.filterwarnings("ignore", message=".*superuser privileges")
    worker = app.Worker(
        hostname=host_format(f"{options.name or f'worker-{os.getpid()}'}@%h"),
        queues=list(queues),
        concurrency=options.concurrency or settings.worker_concurrency,
        loglevel="INFO",
        quiet=True,  # no banner: each line of the log is one of its format
        pool_cls="prefork",
        task_events=True,
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _beat(settings: Settings) -> int:
    from workers import logs
    from workers.app import build_app
    from workers.beat import run_beat

    logs.install(settings)
    run_beat(build_app(settings))
    return 0


def _metrics(settings: Settings, directory: Path) -> int:
    from afterturn.metrics.exporter import serve

    serve(settings, directory)
    return 0


def _flower(settings: Settings) -> int:
    from workers.app import build_app
    from workers.watch import run_flower

    return run_flower(build_app(settings), settings)


if __name__ == "__main__":
    sys.exit(main())
