"""Vectors for published rows that lack one, made outside any transaction."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from afterturn.database import Database, error_code
from afterturn.embedding.checked import CheckedEmbedder
from afterturn.errors import AfterturnError
from afterturn.jobs.ledger import ClaimedJob, Ledger
from afterturn.jobs.tally import Tally
from afterturn.retrieval.index_text import index_text

BATCH: Final = 128

_LACKING = """
select record_id, revision, text, metadata, layer, occurred_at, recorded_at
from afterturn.memories
where path = $1 and embedding is null and not pending order by record_id limit $2
"""


class EmbedStep:
    """Runs embed jobs. A row that changes meanwhile keeps no vector of its former text."""

    def __init__(
        self, database: Database, ledger: Ledger, embedder: CheckedEmbedder | None
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._embedder = embedder

    async def embed(self, job: ClaimedJob, tally: Tally) -> None:
        """Embed what lacks a vector at the job's path, in batches, and end the job.

        Nothing under a standing erase is shown to the embedder.
        """
        try:
            while not await self._batch(job, tally):
                pass
        except AfterturnError as error:
            verdict = await self._ledger.fail_turn(job.lease, error_code(error))
            tally.failed("embed", verdict, error_code(error), job.lease.job_id)

    async def _batch(self, job: ClaimedJob, tally: Tally) -> bool:
        """One batch; True when the job has ended or is no longer ours."""
        if await self._ledger.under_erase([job.stored_path]):
            return await self._put_off(job, tally)
        rows = await self._database.rows(_LACKING, job.stored_path, BATCH)
        if self._embedder is None:
            rows = []
        texts = [
            index_text(
                row["text"],
                row["metadata"],
                layer=row["layer"],
                occurred_at=row["occurred_at"],
                recorded_at=row["recorded_at"],
            )
            for row in rows
        ]
        vectors: list[bytes] = []
        if texts and self._embedder is not None:
            matrix = await asyncio.to_thread(self._embedder.embed, texts)
            vectors = [row.tobytes() for row in matrix.astype(np.dtype("<f2"))]
        last = len(rows) < BATCH
        verdict = await self._ledger.apply_embed(
            job,
            [row["record_id"] for row in rows],
            [row["revision"] for row in rows],
            vectors,
            last=last,
        )
        if verdict == "erasing":
            return await self._put_off(job, tally)
        if verdict == "lost":
            tally.applied("embed", "lost", job.lease.job_id)
            return True
        tally.add("embedded", len(rows))
        if last:
            tally.done("embed", job.lease.job_id)
        return last

    async def _put_off(self, job: ClaimedJob, tally: Tally) -> bool:
        await self._ledger.put_off([job.lease])
        tally.applied("embed", "erasing", job.lease.job_id)
        return True
