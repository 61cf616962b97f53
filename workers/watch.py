"""Flower: looks at the fleet, changes nothing, remembers a bounded number of tasks."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, Final

from afterturn.errors import ConfigurationError
from afterturn.fleet import check_flower, port_is_free
from afterturn.settings import Settings

TASKS_MAX: Final = 10_000
_OFFLINE_SECONDS: Final = 600
_COLUMNS: Final = "name,uuid,state,args,result,received,runtime,worker"


def run_flower(app: Any, settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Raises `ConfigurationError` when it may or can not listen."""
    check_flower(settings)
    if not port_is_free(settings.flower_address, settings.flower_port):
        raise port_taken(settings)
    # No command line and no `flowerconfig.py` of the current directory: set here, once.
    from flower.app import Flower
    from flower.command import setup_logging
    from flower.options import default_options
    from flower.urls import settings as tornado_settings

    default_options.address = settings.flower_address
    default_options.port = settings.flower_port
    default_options.read_only = settings.flower_read_only
    # Workers send events by themselves and take no such order.
    default_options.enable_events = False
    default_options.max_tasks = TASKS_MAX
    default_options.purge_offline_workers = _OFFLINE_SECONDS
    default_options.natural_time = True
    default_options.auto_refresh = True
    default_options.tasks_columns = _COLUMNS
    if settings.flower_basic_auth is not None:
        default_options.basic_auth = [settings.flower_basic_auth.get_secret_value()]
    setup_logging()

    flower = Flower(capp=app, options=default_options, debug=False, **tornado_settings)
    signal.signal(signal.SIGTERM, _leave)
    port = flower.start_http_server()
    print(f"Flower on http://{settings.flower_address}:{port}", flush=True)
    try:
        flower.start()
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        flower.stop()
    return 0


def port_taken(settings: Settings) -> ConfigurationError:
    """What to say when something else listens there."""
    return ConfigurationError(
        "Flower's port is taken",
        detail=f"{settings.flower_address}:{settings.flower_port}",
        hint="Set AFTERTURN_FLOWER_PORT to another one, or 0 for any.",
    )


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
