"""Whether the parts that the settings name can be put together, asked before a worker starts."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from afterturn.embedding.compose import compose_embedder
from afterturn.embedding.stored import EmbedderIdentity
from afterturn.errors import AfterturnError, ConfigurationError
from afterturn.extraction.compose import compose_extractor
from afterturn.settings import Settings


def check_parts(settings: Settings) -> EmbedderIdentity | None:
    """Compose extractor and embedder once, in a process that ends at once; the latter's identity.

    A factory may open sockets or start threads, and the pool must not inherit them. Raises
    `ConfigurationError`.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            found = pool.submit(_found, settings).result()
        except BrokenProcessPool:
            found = ConfigurationError(
                "The factory of the extractor or of the embedder ends the process",
                detail=f"AFTERTURN_EXTRACTOR={settings.extractor}, "
                f"AFTERTURN_EMBEDDER={settings.embedder}",
            )
    if isinstance(found, AfterturnError):
        raise found
    return found


def _found(settings: Settings) -> EmbedderIdentity | AfterturnError | None:
    part = "extractor"
    try:
        compose_extractor(settings)
        part = "embedder"
        embedder = compose_embedder(settings)
    except AfterturnError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the factory is anybody's code
        return ConfigurationError(
            f"The {part}'s factory failed",
            detail=f"AFTERTURN_{part.upper()}={getattr(settings, part)}, {type(error).__name__}",
        )
    return None if embedder is None else EmbedderIdentity.of(embedder)
