"""Expire jobs: records of a layer that are old enough go, in chunks of one transaction each."""

from __future__ import annotations

from datetime import datetime

from afterturn.database import Database
from afterturn.jobs.ledger import ClaimedJob, Ledger
from afterturn.jobs.tally import Tally
from afterturn.settings import Settings

_EXPIRE_CHUNK = "select * from afterturn.expire_chunk($1, $2, $3, $4, $5, $6, $7)"


class ExpireStep:
    """Runs claimed expire jobs; numbers of erases do not move, so turns under way go on."""

    def __init__(self, database: Database, ledger: Ledger, settings: Settings) -> None:
        self._database = database
        self._ledger = ledger
        self._settings = settings

    async def expire(self, job: ClaimedJob, tally: Tally) -> None:
        """Delete until nothing old enough is left, or somebody waits for the scope."""
        before = datetime.fromisoformat(job.request["before"])
        while True:
            row = await self._database.row(
                _EXPIRE_CHUNK,
                job.lease.job_id,
                job.lease.token,
                job.stored_path,
                job.request["layer"],
                before,
                self._settings.chunk_rows,
                self._ledger.lease_time,
            )
            if row["gone"]:
                tally.add("expired", row["gone"])
            if row["verdict"] != "more":
                tally.applied("expire", row["verdict"], job.lease.job_id)
                return
