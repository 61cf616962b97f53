"""Whether the parts that the settings name can be put together, asked before a worker starts."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from afterturn.errors import AfterturnError, ConfigurationError
from afterturn.extraction.compose import compose_extractor
from afterturn.settings import Settings


def check_parts(settings: Settings) -> None:
    """Compose the extractor once, in a process that ends at once.

    A factory may open sockets or start threads, and the pool must not inherit them. Raises
    `ConfigurationError`.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            defect = pool.submit(_defect, settings).result()
        except BrokenProcessPool:
            defect = ConfigurationError(
                "The extractor's factory ends the process",
                detail=f"AFTERTURN_EXTRACTOR={settings.extractor}",
            )
    if defect is not None:
        raise defect


def _defect(settings: Settings) -> AfterturnError | None:
    try:
        compose_extractor(settings)
    except AfterturnError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the factory is anybody's code
        return ConfigurationError(
            "The extractor's factory failed",
            detail=f"AFTERTURN_EXTRACTOR={settings.extractor}, {type(error).__name__}",
        )
    return None
