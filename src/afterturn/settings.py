"""Settings: read once at the edge from `AFTERTURN_*`, validated, frozen, passed in."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from afterturn.errors import ConfigurationError
from afterturn.records import MemoryLayer
from afterturn.scope import MAX_DEPTH

PREFIX: Final = "AFTERTURN_"

# Read where the binaries are looked for, before any settings exist.
_ELSEWHERE: Final = frozenset({"POSTGRES_BIN", "VALKEY_SERVER", "ROOT_MODE"})

# A hundred years: what is longer cannot be added to a time, neither here nor in PostgreSQL.
SECONDS_MAX: Final = 100 * 365.25 * 86_400

Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
SecondsOrNone = Annotated[float, Field(ge=0, le=SECONDS_MAX)]


class Settings(BaseSettings):
    """Everything that can be set. Each field is read from `AFTERTURN_` and its name."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_ignore_empty=True,
    )

    home: Path = Field(
        default_factory=lambda: user_data_path("afterturn"),
        description="Where embedded servers live.",
    )
    database_url: str | None = Field(
        default=None,
        repr=False,  # it may hold a password
        description="PostgreSQL (`postgresql://…`); embedded when missing.",
    )
    broker_url: str | None = Field(
        default=None,
        repr=False,
        description="Redis or Valkey (`redis://`, `rediss://`, `redis+socket://`); embedded "
        "when missing.",
    )
    extractor: str = Field(
        default="rules", description="`rules`, `none`, `openai`, or `module:factory`."
    )
    embedder: str = Field(
        default="wordllama",
        description="`wordllama`, `minilm` (or `minilm:FOLDER`), `openai:MODEL`, "
        "`fastembed:MODEL`, `none`, or `module:factory`.",
    )
    embedder_base_url: str | None = Field(
        default=None,
        description="The endpoint of `openai:MODEL`; that of the extraction model when missing.",
    )
    embedder_api_key: SecretStr | None = Field(
        default=None, description="Its key; that of the extraction model when missing."
    )
    embedder_dim: int | None = Field(
        default=None,
        ge=1,
        le=16_000,
        description="The length of its vectors, where the model's name does not tell.",
    )
    embedder_timeout_seconds: Seconds = Field(
        default=30.0, description="How long the endpoint may take to embed one request."
    )
    model: str = Field(default="", description="The extraction model's name.")
    model_base_url: str | None = Field(
        default=None, description="The OpenAI-compatible endpoint of the extraction model."
    )
    model_api_key: SecretStr | None = Field(default=None, description="Its key.")
    model_timeout_seconds: Seconds = Field(
        default=60.0, description="How long one extraction may take before it counts as failed."
    )
    model_calls_max: int = Field(
        default=16,
        ge=1,
        le=200,
        description="Calls of the extraction model at a time, per worker process.",
    )
    model_batch_tokens: int = Field(
        default=6_000,
        ge=100,
        le=1_000_000,
        description="Waiting turns of one scope share a call of the model up to this size.",
    )
    extract_after_seconds: SecondsOrNone = Field(
        default=0.0,
        description="How long a turn waits for others to share its call of the model.",
    )
    outage_seconds: SecondsOrNone = Field(
        default=86_400.0,
        description="How long turns wait for a model out of reach before attempts are counted.",
    )
    fact_level: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DEPTH,
        description="Facts go to the turn's ancestor of this level (1: the root), where it has "
        "one; unset: to the turn's own scope.",
    )
    fact_layers: str = Field(
        default="semantic,procedural,prospective,episodic",
        description="Layers that facts may go to; what a model puts elsewhere becomes the first.",
    )
    redact: bool = Field(
        default=False,
        description="Replace what looks like a key, a password or a card number before a turn is "
        "handed over.",
    )
    cache_bytes: int = Field(
        default=256 << 20, ge=1 << 20, description="Retrieval cache of one process."
    )
    connect_timeout_seconds: Seconds = Field(
        default=5.0, description="How long a caller waits for a database connection."
    )
    command_timeout_seconds: Seconds = Field(
        default=30.0, description="How long one database statement may take."
    )
    pool_size: int = Field(
        default=8, ge=1, le=200, description="Database connections of one calling process."
    )
    worker_pool_size: int = Field(
        default=4, ge=1, le=200, description="Database connections of one worker process."
    )
    statement_cache_size: int = Field(
        default=200,
        ge=0,
        description="Prepared statements kept per connection; 0 behind a transaction pooler.",
    )
    lease_seconds: Seconds = Field(
        default=30.0, description="How long a worker holds a job without a sign of life."
    )
    max_attempts: int = Field(
        default=5, ge=1, description="Attempts at record, extract and embed before `dead`."
    )
    retry_base_seconds: Seconds = Field(
        default=1.0, description="Wait after the first failed attempt; doubles each time."
    )
    retry_cap_seconds: Seconds = Field(default=300.0, description="The longest such wait.")
    batch_turns_max: int = Field(
        default=50, ge=1, le=50, description="Turns recorded in one transaction."
    )
    chunk_rows: int = Field(
        default=2_000, ge=1, description="Rows erased or published in one transaction."
    )
    sweep_seconds: Seconds = Field(
        default=3.0, description="How often beat looks for work whose ring was lost."
    )
    ring_linger_seconds: SecondsOrNone = Field(
        default=0.02,
        description="How long rings of turns wait to travel together; those of erases do not.",
    )
    rings_max: int = Field(
        default=10_000, ge=1, description="Rings kept while the broker is away; more are dropped."
    )
    broker_timeout_seconds: Seconds = Field(
        default=0.5, description="How long the publisher waits for the broker, per ring."
    )
    wait_timeout_seconds: Seconds = Field(
        default=120.0, description="How long flush, forget and drain wait."
    )
    takeover_seconds: SecondsOrNone = Field(
        default=1.0,
        description="After this a waiting flush or forget runs the job in its own process.",
    )
    working_seconds: Seconds = Field(
        default=86_400.0, description="Age at which `working` records expire."
    )
    jobs_kept_seconds: Seconds = Field(
        default=7 * 86_400.0, description="How long finished jobs stay in the ledger."
    )
    text_bytes_max: int = Field(
        default=1 << 20, ge=1, description="The largest text of one side of a turn, in bytes."
    )
    flower_address: str = Field(default="127.0.0.1", description="Where Flower listens.")
    flower_port: int = Field(default=5555, ge=0, le=65_535, description="Flower's port.")
    flower_basic_auth: SecretStr | None = Field(
        default=None,
        description="`user:password` for Flower; required on any address but loopback.",
    )
    flower_read_only: bool = Field(
        default=True,
        description="Whether Flower only watches. `false` lets whoever logs in stop tasks and "
        "workers, and workers obey; needs a login.",
    )
    metrics_address: str = Field(
        default="127.0.0.1", description="Where a worker serves its metrics."
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="The port for that; 0: none are served. `up` takes three in a row.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="How workers and beat write their log: `text` or `json`."
    )
    worker_concurrency: int = Field(
        default=2, ge=1, le=64, description="Processes of each Celery worker."
    )

    @field_validator("database_url")
    @classmethod
    def _postgresql(cls, value: str | None) -> str | None:
        return _url(value, "AFTERTURN_DATABASE_URL", {"postgresql", "postgres"})

    @field_validator("broker_url")
    @classmethod
    def _redis(cls, value: str | None) -> str | None:
        return _url(value, "AFTERTURN_BROKER_URL", {"redis", "rediss", "redis+socket", "unix"})

    @field_validator("fact_layers")
    @classmethod
    def _layers(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        for name in names:
            if name not in set(MemoryLayer):
                raise ConfigurationError(
                    "AFTERTURN_FACT_LAYERS names no layer",
                    detail=f"got {name[:40]!a}",
                    hint=f"Use some of {', '.join(MemoryLayer)}, separated by commas.",
                )
        return ",".join(names)

    @classmethod
    def load(cls) -> Self:
        """Settings from the environment; every defect is a `ConfigurationError`.

        A variable with the prefix that is no setting is refused and named with the nearest one:
        a misspelt limit would otherwise be ignored without a word.
        """
        known = {f"{PREFIX}{name.upper()}" for name in cls.model_fields}
        known |= {PREFIX + name for name in _ELSEWHERE}
        for name in os.environ:
            if name.upper().startswith(PREFIX) and name.upper() not in known:
                near = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.0)
                raise ConfigurationError(
                    f"{name} is not a setting", hint=f"Did you mean {near[0]}?"
                )
        try:
            return cls()
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            name = PREFIX + ".".join(str(part) for part in first["loc"]).upper()
            raise ConfigurationError(f"{name} cannot be used", detail=first["msg"]) from None


def _url(value: str | None, name: str, schemes: set[str]) -> str | None:
    if value is None:
        return None
    # Only what stands before "://" is shown: the rest may hold a password.
    scheme, found, _ = value.partition("://")
    if not found or scheme not in schemes:
        raise ConfigurationError(
            f"{name} has the wrong scheme",
            detail=f"got {ascii(scheme[:20]) if found else 'none'}, "
            f"expected one of {', '.join(sorted(schemes))}",
        )
    return value
