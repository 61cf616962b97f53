"""Schedules become jobs once, whatever the clocks and the sweeps do."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from afterturn.database import Database
from afterturn.errors import ErasePending, MemoryContractError
from afterturn.lifecycle import forget_request
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.schedules import Schedules, parse_age
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.writes import WriteRequest
from afterturn.writing import PostgresWriting
from tests.office.conftest import Clock, Sweeper, run_claimed
from tests.pipeline.conftest import Desk

ACME = MemoryScope.of("acme")
ALICE = ACME.child("alice")
BOB = MemoryScope.of("other", "bob")
REQUEST = forget_request(derived="erase", requested_by="officer", reason="T-1")
BERLIN = "Europe/Berlin"


async def _jobs(desk: Desk, kind: str) -> list[dict[str, Any]]:
    return await desk.rows("select * from afterturn.jobs where kind = $1 order by id", kind)


class TestErasesToCome:
    async def test_nothing_happens_before_it_is_due(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper
    ) -> None:
        """A schedule is a row and no intent: until then the scope is used as ever."""
        at = datetime.now(UTC) + timedelta(hours=1)
        made = await schedules.add_forget(ALICE, at, REQUEST)
        assert (made.state, made.scope_path, made.due_at) == ("waiting", ALICE.path, at)
        assert await sweeper.sweep() == []
        assert (await desk.stage(ALICE, "t1")).verdict == "staged"

    async def test_it_becomes_one_job_however_many_sweeps_there_are(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Ten sweeps at once, and again: one job, with the request as it was put."""
        soon = datetime.now(UTC) + timedelta(minutes=1)
        made = [await schedules.add_forget(scope, soon, REQUEST) for scope in (ALICE, BOB)]
        await clock.go_to(soon + timedelta(days=3))
        rung = await asyncio.gather(*(sweeper.sweep() for _ in range(10)))
        rung.append(await sweeper.sweep())
        forgets = await _jobs(desk, "forget")
        assert sorted(job for each in rung for job in each) == [
            ("forget", forget["id"]) for forget in forgets
        ]
        assert {forget["path"] for forget in forgets} == {ALICE.stored_path, BOB.stored_path}
        assert all(forget["request"] == REQUEST for forget in forgets)
        ended = {each.schedule_id: each for each in await schedules.list(ended=True)}
        assert {ended[each.schedule_id].job_id for each in made} == {f["id"] for f in forgets}

    async def test_one_that_is_cancelled_never_happens(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Cancelling is legal until it is due, and twice; afterwards it is refused by name."""
        soon = datetime.now(UTC) + timedelta(minutes=1)
        first = await schedules.add_forget(ALICE, soon, REQUEST)
        second = await schedules.add_forget(BOB, soon, REQUEST)
        for _ in range(2):
            assert (await schedules.cancel(first.schedule_id)).state == "cancelled"
        await clock.go_to(soon)
        await sweeper.sweep()
        (forget,) = await _jobs(desk, "forget")
        assert forget["path"] == BOB.stored_path
        with pytest.raises(MemoryContractError, match=f"job {forget['id']}"):
            await schedules.cancel(second.schedule_id)
        with pytest.raises(MemoryContractError, match="no such schedule"):
            await schedules.cancel(987_654)

    @pytest.mark.parametrize("seed", [1, 2, 3])
    async def test_sweeps_and_cancellations_at_once(
        self, desk: Desk, schedules: Schedules, settings: Settings, clock: Clock, seed: int
    ) -> None:
        """Each erase is cancelled or made a job, never both, never twice, whoever is quicker."""
        print(f"seed {seed}")
        dice = random.Random(seed)
        scopes = [ACME, ALICE, ALICE.child("a"), ALICE.child("b"), BOB, BOB.ancestor(1)]
        soon = datetime.now(UTC) + timedelta(minutes=5)
        made: list[int] = []
        for number in range(24):
            request = forget_request(derived="erase", reason=f"T-{number}")
            at = soon + timedelta(milliseconds=dice.randrange(1000))
            made.append((await schedules.add_forget(dice.choice(scopes), at, request)).schedule_id)
        await clock.go_to(soon + timedelta(milliseconds=500))
        cancelled: set[int] = set()

        async def cancel(schedule_id: int) -> None:
            try:
                await schedules.cancel(schedule_id)
            except MemoryContractError:
                return
            cancelled.add(schedule_id)

        work = [Sweeper(desk, settings).sweep() for _ in range(6)]
        work += [cancel(each) for each in dice.sample(made, 10)]  # type: ignore[misc]
        dice.shuffle(work)
        await asyncio.gather(*work)
        await clock.go_on(timedelta(minutes=1))
        await Sweeper(desk, settings).sweep()
        reasons = [each["request"]["reason"] for each in await _jobs(desk, "forget")]
        expected = [f"T-{n}" for n, each in enumerate(made) if each not in cancelled]
        assert sorted(reasons) == sorted(expected)
        states = {e.schedule_id: e.state for e in await schedules.list(ended=True)}
        assert {e for e in made if states[e] == "cancelled"} == cancelled
        assert all(states[e] == "done" for e in made if e not in cancelled)

    async def test_an_erase_takes_the_schedules_under_it(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper, clock: Clock
    ) -> None:
        """They name the scope, so they go with it; the receipt counts them, a neighbour's stays."""
        soon = datetime.now(UTC) + timedelta(minutes=1)
        gone = await schedules.add_forget(ALICE, soon, REQUEST)
        rule = await schedules.add_rule(MemoryLayer.SEMANTIC, timedelta(days=1), ALICE)
        kept = await schedules.add_forget(BOB, soon, REQUEST)
        job_id = await desk.enqueue_forget(ACME)
        assert await desk.run(job_id) == "forgot 1"
        assert await desk.value("select counts from afterturn.jobs where id = $1", job_id) == {
            "schedules": 2
        }
        listed = {each.schedule_id: each for each in await schedules.list(ended=True)}
        for each in (gone, rule):
            assert listed[each.schedule_id].state == "erased"
            assert listed[each.schedule_id].scope_path is None
        assert listed[kept.schedule_id].state == "waiting"
        await clock.go_to(soon)
        await sweeper.sweep()
        assert [each["path"] for each in await _jobs(desk, "forget") if each["path"]] == [
            BOB.stored_path
        ]

    async def test_an_erase_that_is_under_way_refuses_new_ones(
        self, desk: Desk, schedules: Schedules
    ) -> None:
        """They would end with it, unseen."""
        await desk.enqueue_forget(ACME)
        with pytest.raises(ErasePending):
            await schedules.add_forget(ALICE, datetime.now(UTC) + timedelta(days=1), REQUEST)
        with pytest.raises(ErasePending):
            await schedules.add_rule(MemoryLayer.SEMANTIC, timedelta(days=1), ALICE)
        assert len(await schedules.list(ended=True)) == 1

    async def test_one_that_comes_due_while_its_scope_is_erased(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper, clock: Clock
    ) -> None:
        """The final transaction ends the schedule; a sweep that was at it has made no job."""
        soon = datetime.now(UTC) + timedelta(minutes=1)
        await schedules.add_forget(ALICE, soon, REQUEST)
        forget = await desk.enqueue_forget(ACME)
        await clock.go_to(soon)
        async with desk.database.connection() as conn:
            async with conn.transaction():
                # As the final transaction does: the job's row, later the schedules.
                await conn.execute("select from afterturn.jobs where id = $1 for update", forget)
                sweeping = asyncio.create_task(sweeper.sweep())
                waiting = "select count(*) from pg_locks where not granted"
                while not await conn.fetchval(waiting):
                    await asyncio.sleep(0.01)
                await conn.execute("select afterturn.forget_schedules($1)", ACME.stored_path)
            assert await sweeping == []
        assert [each["id"] for each in await _jobs(desk, "forget")] == [forget]
        (ended,) = [e for e in await schedules.list(ended=True) if e.kind == "forget"]
        assert ended.state == "erased"


class TestCivilTime:
    async def test_it_is_computed_by_postgresql(self, schedules: Schedules) -> None:
        """A skipped time comes after the gap, a repeated one is the second."""
        moments = {
            # The night of 29 March 2026 skips 02:00 to 03:00.
            "2026-03-29T01:30": datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
            "2026-03-29T02:30": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            "2026-03-29T03:30": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            # That of 25 October repeats it.
            "2026-10-25T01:30": datetime(2026, 10, 24, 23, 30, tzinfo=UTC),
            "2026-10-25T02:30": datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
            "2026-10-25T03:30": datetime(2026, 10, 25, 2, 30, tzinfo=UTC),
        }
        for civil, moment in moments.items():
            assert await schedules.civil_time(datetime.fromisoformat(civil), BERLIN) == moment

    async def test_a_rule_by_the_clock_runs_once_a_day(self, desk: Desk) -> None:
        """Also in the nights that skip an hour or repeat one, however often it is asked."""
        times = [time(0, 30), time(2, 30), time(3, 30), time(23, 59)]
        for start, at in itertools.product(["2026-03-27", "2026-10-23", "2026-06-01"], times):
            rows = await desk.rows(
                """
                with recursive run(at, n) as (
                    select afterturn.next_run($1::text::timestamp at time zone $3, 86400, $2, $3), 1
                    union all
                    select afterturn.next_run(r.at + interval '1 minute', 86400, $2, $3), n + 1
                    from run r where n < 5)
                select (at at time zone $3)::date::text as day from run
                """,
                start,
                at,
                BERLIN,
            )
            first = datetime.fromisoformat(start).date()
            assert [row["day"] for row in rows] == [
                str(first + timedelta(days=n)) for n in range(5)
            ]

    async def test_zones_are_checked(self, schedules: Schedules) -> None:
        """PostgreSQL takes much for a zone; we take only what it lists."""
        for zone in ("Europe/Atlantis", "foo5", ""):
            with pytest.raises(MemoryContractError, match="no such time zone"):
                await schedules.civil_time(datetime.fromisoformat("2026-01-01"), zone)


class TestBadInput:
    async def test_a_naive_time(self, schedules: Schedules) -> None:
        """Its zone could only be guessed."""
        with pytest.raises(MemoryContractError, match="no time zone"):
            await schedules.add_forget(ALICE, datetime.fromisoformat("2030-01-01"), REQUEST)

    async def test_a_time_in_the_past(self, schedules: Schedules) -> None:
        """By the database's clock, and nothing is added."""
        with pytest.raises(MemoryContractError, match="in the past"):
            await schedules.add_forget(ALICE, datetime.now(UTC) - timedelta(seconds=1), REQUEST)
        assert [each.is_default for each in await schedules.list(ended=True)] == [True]

    async def test_a_rule_that_would_erase_everything(self, schedules: Schedules) -> None:
        """An age that everything has already."""
        for age in (timedelta(0), timedelta(days=-1), timedelta(seconds=59)):
            with pytest.raises(MemoryContractError, match="erase everything"):
                await schedules.add_rule(MemoryLayer.EPISODIC, age)
        assert len(await schedules.list()) == 1

    async def test_a_time_of_day_without_its_zone(self, schedules: Schedules) -> None:
        """And the other way round."""
        for day in ({"daily_at": time(2, 30)}, {"zone": BERLIN}):
            with pytest.raises(MemoryContractError, match="time zone"):
                await schedules.add_rule(MemoryLayer.EPISODIC, timedelta(days=1), **day)

    async def test_the_default_rule_is_not_cancelled(self, schedules: Schedules) -> None:
        """The setting says what it is."""
        (default,) = await schedules.list()
        with pytest.raises(MemoryContractError, match="AFTERTURN_WORKING_SECONDS"):
            await schedules.cancel(default.schedule_id)

    async def test_a_time_at_the_end_of_all_times(self, schedules: Schedules) -> None:
        """Beyond what a datetime can hold, somewhere on earth."""
        for day in ("0001-12-31", "9999-12-31"):
            with pytest.raises(MemoryContractError, match="years"):
                await schedules.civil_time(datetime.fromisoformat(day), "Pacific/Samoa")

    @pytest.mark.parametrize(
        "text", ["9999999w", "", "30", "d", "-1d", "1y", "1.5d", "30 d", "1d2h"]
    )
    def test_an_age_that_cannot_be_read(self, text: str) -> None:
        """A number and a unit, no more."""
        with pytest.raises(MemoryContractError, match="30d"):
            parse_age(text)

    def test_ages(self) -> None:
        """Minutes, hours, days, weeks."""
        assert [parse_age(each) for each in ("90m", "12h", "30d", "2w")] == [
            timedelta(minutes=90),
            timedelta(hours=12),
            timedelta(days=30),
            timedelta(weeks=2),
        ]


async def _write(desk: Desk, scope: MemoryScope, layer: MemoryLayer, *ids: str) -> None:
    records = tuple(
        MemoryRecord(
            record_id=each, text=f"text of {each}", scope_path=scope.path, layer=layer, origin="t"
        )
        for each in ids
    )
    writing = PostgresWriting(desk.database, desk.settings)
    await writing.write(WriteRequest(scope=scope, records=records))


async def _ids(desk: Desk) -> set[str]:
    return {row["record_id"] for row in await desk.rows("select * from afterturn.memories")}


class TestRetention:
    async def test_working_records_expire_after_a_day(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """By the time of recording, by default, everywhere; other layers stay."""
        for scope in (ALICE, BOB):
            await _write(desk, scope, MemoryLayer.WORKING, f"old-{scope.segments[-1]}")
            await _write(desk, scope, MemoryLayer.SEMANTIC, f"fact-{scope.segments[-1]}")
            await desk.flush(scope)
        await clock.go_on(timedelta(hours=23))
        assert await sweeper.run() == []
        await _write(desk, ALICE, MemoryLayer.WORKING, "young")
        await clock.go_on(timedelta(hours=1, minutes=5))
        assert await sweeper.run() == ["expired 1", "expired 1"]
        assert await _ids(desk) == {"fact-alice", "fact-bob", "young"}
        assert {each["path"] for each in await _jobs(desk, "expire")} == {
            "v1/acme/",
            "v1/other/",
        }

    async def test_the_setting_is_the_age(
        self, desk: Desk, database: Database, settings: Settings, clock: Clock
    ) -> None:
        """AFTERTURN_WORKING_SECONDS."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        short = settings.model_copy(update={"working_seconds": 600.0})
        await clock.go_on(timedelta(minutes=11))
        assert await Sweeper(desk, short).run() == ["expired 1"]

    async def test_a_rule_is_for_its_scope_and_layer(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Published and waiting records alike, chunk by chunk; neighbours stay."""
        await schedules.add_rule(MemoryLayer.EPISODIC, timedelta(days=30), ALICE)
        deep = ALICE.child("chat")
        for scope in (ALICE, deep, ACME, ACME.child("alice2")):
            name = scope.segments[-1]
            await _write(desk, scope, MemoryLayer.EPISODIC, *(f"{name}-{n}" for n in range(5)))
        await desk.flush(deep)
        await _write(desk, ALICE, MemoryLayer.SEMANTIC, "fact")
        await clock.go_on(timedelta(days=29))
        assert await sweeper.run() == []
        await clock.go_on(timedelta(days=2))
        desk.lifecycle._expiry._settings = desk.settings.model_copy(update={"chunk_rows": 2})
        assert await sweeper.run() == ["expired 10"]
        assert await _ids(desk) == {
            "fact",
            *(f"acme-{n}" for n in range(5)),
            *(f"alice2-{n}" for n in range(5)),
        }
        (job,) = await _jobs(desk, "expire")
        assert (job["counts"], job["outcome"]) == ({"memories": 10}, "done")

    async def test_turns_under_way_go_on(self, desk: Desk, sweeper: Sweeper, clock: Clock) -> None:
        """The number of contents moves, so readers see it; that of erases does not."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await desk.flush(ALICE)
        token = await desk.token(ALICE)
        state = "select removed from afterturn.read_state($1)"
        before = await desk.value(state, ALICE.stored_path)
        await clock.go_on(timedelta(days=2))
        assert await sweeper.run() == ["expired 1"]
        assert (await desk.value(state, ALICE.stored_path))[-1] > before[-1]
        assert (await desk.stage(ALICE, "t1", token=token)).verdict == "staged"

    async def test_what_was_rewritten_is_young(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Age is that of the recording."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await clock.go_on(timedelta(hours=20))
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await clock.go_on(timedelta(hours=20))
        assert await sweeper.run() == []
        assert await _ids(desk) == {"w"}

    async def test_an_expiry_lets_others_pass(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Somebody waits for the scope: it goes to the tail after the chunk under way."""
        await _write(desk, ALICE, MemoryLayer.WORKING, *(f"w{n}" for n in range(6)))
        await clock.go_on(timedelta(days=2))
        ((_, job_id),) = await sweeper.sweep()
        flush = await desk.enqueue("flush", ALICE)
        desk.lifecycle._expiry._settings = desk.settings.model_copy(update={"chunk_rows": 2})
        assert await desk.run(job_id) == "expired 2, requeued 1"
        assert (await desk.outcome(job_id))[0] == "requeued"
        assert await desk.run(flush) == "flushed 1"
        receipt = await desk.value("select receipt from afterturn.jobs where id = $1", job_id)
        assert await desk.run(receipt["successor"]) == "expired 4"

    async def test_one_that_fails_does_not_hold_up_an_erase(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """The erase takes all that the expiry would: no job is left that names the scope."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await clock.go_on(timedelta(days=2))
        ((_, job_id),) = await sweeper.sweep()
        job = await desk.claim_job(job_id)
        assert job is not None
        forget = await desk.enqueue_forget(ACME)
        verdict, successor = await desk.ledger.fail_lifecycle(job.lease, "MemoryUnavailable")
        assert verdict == "superseded"
        await desk.ledger.unblock(job_id)
        assert await desk.run(forget) == "forgot 1"
        assert successor is None
        assert (await desk.outcome(job_id))[0] == "superseded"
        assert await desk.rows("select id from afterturn.jobs where path is not null") == []

    async def test_a_late_worker_deletes_nothing(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Its lease is gone: refused, and the one who took over does it."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await clock.go_on(timedelta(days=2))
        ((_, job_id),) = await sweeper.sweep()
        late = await desk.claim_job(job_id)
        await desk.expire_lease(job_id)
        second = await desk.claim_job(job_id)
        assert late is not None
        assert second is not None
        assert await run_claimed(desk, late) == "refused: lease lost"
        assert await _ids(desk) == {"w"}
        assert await run_claimed(desk, second) == "expired 1"

    async def test_a_sweep_that_dies_at_a_rule_is_followed_by_another(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """The rule is taken for a minute; no job is made twice meanwhile."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await clock.go_on(timedelta(days=2))
        rule = await desk.rows("select * from afterturn.claim_due_rule('1 minute')")
        await desk.rows(
            "select * from afterturn.enqueue_expire($1, 'v1/acme/', 'working', $2, '5s')",
            rule[0]["id"],
            rule[0]["before"],
        )
        assert await sweeper.sweep() == []
        await clock.go_on(timedelta(minutes=2))
        assert await sweeper.sweep() == []
        assert len(await _jobs(desk, "expire")) == 1

    async def test_no_expiry_behind_an_erase(
        self, desk: Desk, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Its job would keep the name of the scope; the rule comes again."""
        await _write(desk, ALICE, MemoryLayer.WORKING, "w")
        await desk.enqueue_forget(ACME)
        await clock.go_on(timedelta(days=2))
        assert await sweeper.sweep() == []
        assert await _jobs(desk, "expire") == []

    async def test_what_keyed_facts_said_expires_with_their_layer(
        self, desk: Desk, schedules: Schedules, sweeper: Sweeper, clock: Clock
    ) -> None:
        """Superseded statements are text, too."""
        await desk.value(
            """
            insert into afterturn.fact_statements (path, record_id, turn_path, turn_id, said_at,
                staged_at, superseded, digest, layer, origin, text, metadata, importance,
                recorded_at)
            values ($1, 'k', $1, 't', now(), now(), true, decode(md5('x'), 'hex'), 'semantic',
                'extracted', 'was so', '{}', 0.5, afterturn.clock())
            """,
            ALICE.stored_path,
        )
        await schedules.add_rule(MemoryLayer.SEMANTIC, timedelta(days=30))
        await clock.go_on(timedelta(days=31))
        assert await sweeper.run() == ["expired 1"]
        assert await desk.value("select count(*) from afterturn.fact_statements") == 0
