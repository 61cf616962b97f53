"""The whole installation examined from outside: each check says what it found and what mends it.

It goes the way of real work. The database is read as the library reads it, a probe goes through
each queue and comes back through the database, the beat is asked whether it ticks. A check that
cannot be made because an earlier one failed is `skipped`: the earlier one is what to mend.
"""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final, Literal

from afterturn.database import Database
from afterturn.embedding.compose import compose_embedder
from afterturn.embedding.stored import EmbedderIdentity, require_same, stored_embedder
from afterturn.errors import AfterturnError, ConfigurationError, MemoryUnavailable
from afterturn.fleet import check_flower
from afterturn.jobs.names import ALL_QUEUES
from afterturn.migrations import functions_are_current, require_current
from afterturn.model import Model
from afterturn.probes import Answer, is_beat, part_here, ping_parts, probe_queues
from afterturn.settings import Settings
from afterturn.status import read_status

Verdict = Literal["ok", "wrong", "skipped"]

OLDEST_SECONDS: Final = 300.0
PROBE_SECONDS: Final = 10.0
SKEW_SECONDS_MAX: Final = 5.0
"""Leases and schedules go by the database's clock alone; times in logs and of ticks do not."""

_EVICTING_IS_OFF: Final = "noeviction"
_NOW = "select extract(epoch from clock_timestamp())::float8"
_FAULTS = """
select count(*) as faults, min(f.fault) as first
from (
    select fault from afterturn.ledger_faults() union all select fault from afterturn.turn_faults()
) f
"""
# What a worker or a calling process needs to change, as far as this login may not.
_LACKING = """
select c.relname || ': ' || string_agg(p.privilege, ', ') as lacks
from unnest(array['turns', 'memories', 'memory_sources', 'fact_statements', 'token_usage', 'jobs',
        'erase_intents', 'schedules', 'probes']) c(relname),
    unnest(array['select', 'insert', 'update', 'delete']) p(privilege)
where not has_table_privilege('afterturn.' || c.relname, p.privilege)
group by c.relname order by c.relname
"""
_LOGIN = "select current_user as name, usesuper as super from pg_user where usename = current_user"


class Check(Model):
    """One finding: what was looked at, how it stands, and the command that mends it."""

    name: str
    verdict: Verdict
    says: str
    mend: str = ""


class Doctor:
    """Examines the installation that the settings name; both URLs must be set."""

    def __init__(
        self,
        settings: Settings,
        *,
        oldest_seconds: float = OLDEST_SECONDS,
        probe_seconds: float = PROBE_SECONDS,
    ) -> None:
        self._settings = settings
        self._oldest = oldest_seconds
        self._probe_seconds = probe_seconds
        self._database = Database(str(settings.database_url), settings, pool_size=1)

    async def examine(self) -> list[Check]:
        """Every check, in the order in which to mend. Raises nothing that an installation does."""
        try:
            return await self._examine()
        finally:
            await self._database.close()

    async def _examine(self) -> list[Check]:
        database = await self._check_database()
        usable = database[-1].verdict == "ok"
        broker = await asyncio.to_thread(check_broker, self._settings)
        checks = [*database]
        if usable:
            checks += [
                await self._check_rights(),
                await self._check_ledger(),
                await self._check_embedder(),
            ]
        checks += broker
        if usable and broker[0].verdict == "ok":
            checks += await self._check_parts()
        else:
            checks.append(_skipped("workers", "needs the database and the broker"))
        checks.append(await asyncio.to_thread(check_flower_guarded, self._settings))
        if usable:
            checks += await self._check_work()
        return checks

    async def _check_database(self) -> list[Check]:
        try:
            before = time.time()
            now = await self._database.value(_NOW)
            after = time.time()
        except AfterturnError as error:
            return [
                _wrong(
                    "database",
                    _one_line(error),
                    "start PostgreSQL, or correct AFTERTURN_DATABASE_URL",
                )
            ]
        checks = [_ok("database", "answers"), _clock("this machine", before - now, after - now)]
        try:
            async with self._database.connection() as connection:
                await require_current(connection)
                if not await functions_are_current(connection):
                    checks.append(
                        _wrong(
                            "schema", "the functions are of another release", "afterturn migrate"
                        )
                    )
                    return checks
        except ConfigurationError as error:
            checks.append(
                _wrong("schema", _one_line(error), "install that release, or a later one")
            )
        except MemoryUnavailable as error:
            checks.append(_wrong("schema", _one_line(error), "afterturn doctor, once more"))
        except AfterturnError as error:
            checks.append(_wrong("schema", _one_line(error), "afterturn migrate"))
        else:
            checks.append(_ok("schema", "fits this release"))
        return checks

    async def _check_rights(self) -> Check:
        lacking = [row["lacks"] for row in await self._database.rows(_LACKING)]
        login = await self._database.row(_LOGIN)
        if lacking:
            return _wrong(
                "rights",
                f"{login['name']} lacks {'; '.join(lacking)}",
                f"afterturn migrate --roles as the owner, then grant afterturn_worker (or "
                f"afterturn_app) to {login['name']}",
            )
        return _ok("rights", f"{login['name']} may do all that is needed")

    async def _check_ledger(self) -> Check:
        found = await self._database.row(_FAULTS)
        if found["faults"]:
            return _wrong(
                "ledger",
                f"{found['faults']} jobs or turns break a rule: {found['first']}",
                "keep a copy of the database and report it; `select * from "
                "afterturn.ledger_faults()` names the jobs, `turn_faults()` the turns",
            )
        return _ok("ledger", "keeps its rules")

    async def _check_embedder(self) -> Check:
        async with self._database.connection() as connection:
            stored = await stored_embedder(connection)
        try:
            embedder = compose_embedder(self._settings)
        except AfterturnError as error:
            return _wrong("embedder", _one_line(error), "correct AFTERTURN_EMBEDDER")
        if embedder is None:
            return _ok("embedder", "none: retrieval is by words alone")
        try:
            require_same(EmbedderIdentity.of(embedder), stored)
        except ConfigurationError as error:
            mend = "set AFTERTURN_EMBEDDER back, or afterturn reembed"
            return _wrong("embedder", _one_line(error), mend)
        stored_as = "as the stored vectors are" if stored else "no vectors are stored yet"
        return _ok("embedder", f"{embedder.model_id}, {stored_as}")

    async def _check_parts(self) -> list[Check]:
        try:
            answers = await probe_queues(
                self._database, self._settings, ALL_QUEUES, seconds=self._probe_seconds
            )
            parts = await asyncio.to_thread(ping_parts, self._settings)
        except Exception as error:  # noqa: BLE001 - whatever the broker's client raises
            return [_wrong("workers", f"the broker broke off: {type(error).__name__}", _RETRY)]
        checks = [self._queue(name, answers.get(name)) for name in ALL_QUEUES]
        for answer in answers.values():
            clock = _clock("a worker", answer.ahead_seconds, answer.ahead_seconds)
            if clock.verdict == "wrong":
                checks.append(clock)
                break
        beats = [name for name in parts if is_beat(name)]
        if beats:
            checks.append(_ok("beat", f"ticks ({', '.join(beats)})"))
        else:
            checks.append(_wrong("beat", "no beat ticks", "afterturn beat, or afterturn up"))
        return checks

    def _queue(self, name: str, answer: Answer | None) -> Check:
        short = name.removeprefix("afterturn.")
        if answer is not None:
            return _ok(f"queue {short}", f"a worker answered in {answer.seconds * 1_000:.0f} ms")
        return _wrong(
            f"queue {short}",
            f"no worker answered within {self._probe_seconds:g} s",
            f"afterturn worker --queues {short}, or afterturn up",
        )

    async def _check_work(self) -> list[Check]:
        status = await read_status(self._database)
        troubles = status.troubles(self._oldest)
        if not troubles:
            return [_ok("work", f"{status.outstanding} jobs unfinished, none of them too old")]
        return [_wrong("work", trouble.says, trouble.mend) for trouble in troubles]


_RETRY: Final = "afterturn doctor, once more; then look at the broker's log"


def check_broker(settings: Settings) -> list[Check]:
    """Whether the broker answers in time and keeps what it is given. Blocks."""
    import redis

    from afterturn.embedded.urls import redis_client_url

    wait = settings.broker_timeout_seconds
    try:
        with redis.Redis.from_url(
            redis_client_url(str(settings.broker_url)),
            socket_timeout=wait,
            socket_connect_timeout=wait,
        ) as client:
            client.ping()
            policy = _policy(client)
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        return [
            _wrong(
                "broker",
                f"refuses this login: {type(error).__name__}",
                "correct the name and the password in AFTERTURN_BROKER_URL",
            )
        ]
    except (redis.RedisError, OSError, ValueError) as error:
        return [
            _wrong(
                "broker",
                f"does not answer: {type(error).__name__}",
                "start it, or correct AFTERTURN_BROKER_URL; without a URL: afterturn up",
            )
        ]
    if policy is None:
        return [_ok("broker", "answers"), _skipped("eviction", "this login may not ask for it")]
    if policy != _EVICTING_IS_OFF:
        return [
            _ok("broker", "answers"),
            _wrong(
                "eviction",
                f"maxmemory-policy is {policy}: keys may vanish",
                "valkey-cli config set maxmemory-policy noeviction, and in its configuration",
            ),
        ]
    return [_ok("broker", "answers"), _ok("eviction", "off, what it takes it keeps")]


def check_flower_guarded(settings: Settings) -> Check:
    """Whether strangers could look into Flower, by its settings and by asking it. Blocks."""
    try:
        check_flower(settings)
    except ConfigurationError as error:
        return _wrong("flower", _one_line(error), error.hint)
    status = _anonymous(settings)
    if status is None:
        return _ok("flower", "does not run at its address; guarded as it is set")
    if status == 200 and settings.flower_basic_auth is not None:
        return _wrong(
            "flower",
            "the one that runs asks nobody for a login",
            "start it anew: afterturn flower, or afterturn up",
        )
    return _ok("flower", "guarded" if status == 401 else "open on loopback alone")


def check_part(settings: Settings, name: str) -> Check:
    """Whether this machine's worker of that name, `beat`, or `flower` answers. Blocks."""
    if name == "flower":
        status = _anonymous(settings)
        if status in (200, 401):
            return _ok(name, "answers")
        return _wrong(name, "does not answer", "afterturn flower")
    broker = check_broker(settings)[0]
    if broker.verdict != "ok":
        return broker
    part = part_here(name)
    try:
        answers = ping_parts(settings, part)
    except Exception as error:  # noqa: BLE001 - whatever the broker's client raises
        return _wrong(name, f"the broker broke off: {type(error).__name__}", _RETRY)
    if part in answers:
        return _ok(name, f"{part} answers")
    command = "afterturn beat" if name == "beat" else f"afterturn worker --name {name}"
    return _wrong(name, f"{part} does not answer", command)


def _anonymous(settings: Settings) -> int | None:
    host = settings.flower_address
    if host in ("0.0.0.0", "::"):  # noqa: S104 - asked on loopback then
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    shown = f"[{host}]" if ":" in host else host
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{shown}:{settings.flower_port}/", timeout=2.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, ValueError):
        return None


def _policy(client: object) -> str | None:
    import redis

    assert isinstance(client, redis.Redis)  # noqa: S101 - narrowed for the type checker
    try:
        info = client.info("memory")
    except redis.ResponseError:
        return None
    return str(info["maxmemory_policy"]) if isinstance(info, dict) else None


def _clock(whose: str, least: float, most: float) -> Check:
    """The clock's lead over the database's lies between the two."""
    off = 0.0 if least <= 0 <= most else min(abs(least), abs(most))
    if off > SKEW_SECONDS_MAX:
        return _wrong(
            "clocks",
            f"{whose} and the database differ by {off:.0f} s",
            "let both follow a time server (timedatectl set-ntp true)",
        )
    return _ok("clocks", f"{whose} and the database agree")


def _one_line(error: AfterturnError) -> str:
    return f"{error.message} ({error.detail})" if error.detail else error.message


def _ok(name: str, says: str) -> Check:
    return Check(name=name, verdict="ok", says=says)


def _wrong(name: str, says: str, mend: str) -> Check:
    return Check(name=name, verdict="wrong", says=says, mend=mend)


def _skipped(name: str, says: str) -> Check:
    return Check(name=name, verdict="skipped", says=says)


def wrong(checks: Sequence[Check]) -> list[Check]:
    """Those that are to be mended."""
    return [check for check in checks if check.verdict == "wrong"]
