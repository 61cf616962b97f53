"""`forget` and `flush`: ask for the ordered job, wait for its receipt, show it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from afterturn.cli.arguments import as_json, examples, scope_argument
from afterturn.cli.opening import database_settings
from afterturn.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.memory import Memory
    from afterturn.receipts import LifecycleReceipt
    from afterturn.scope import MemoryScope


@click.command(
    epilog=examples(
        "afterturn forget acme/alice",
        "afterturn forget acme/alice --requested-by dpo --reason TICKET-7 --json",
        "afterturn forget acme/alice --session c-42",
    )
)
@scope_argument
@click.option("--session", help="Only this session, at exactly SCOPE.")
@click.option("--turn", "turn_ids", multiple=True, metavar="ID", help="Only this turn; repeatable.")
@click.option(
    "--record", "record_ids", multiple=True, metavar="ID", help="Only this record; repeatable."
)
@click.option(
    "--derived",
    type=click.Choice(["erase", "keep"]),
    default="erase",
    show_default=True,
    help="What to do with facts elsewhere that were learned from the scope alone.",
)
@click.option("--requested-by", default="", help="Who asked; kept in the erase log for ever.")
@click.option("--reason", default="", help="Why: a ticket's number, kept for ever, too.")
@as_json
def forget(
    scope: MemoryScope,
    session: str | None,
    turn_ids: tuple[str, ...],
    record_ids: tuple[str, ...],
    derived: Literal["erase", "keep"],
    requested_by: str,
    reason: str,
    as_json: bool,
) -> None:
    """Erase SCOPE and everything below it for good. Asks nothing.

    From the request on, nothing under SCOPE can be read or written, and no turn that had begun
    before can bring anything back. Returns with the receipt. Needs neither workers nor a broker:
    what no worker takes is done here.

    With --session, --turn or --record only what is named at SCOPE goes, with all that was made of
    it. A record that is one side of a turn stands for that message.
    """
    named: dict[str, Any] = {}
    if session is not None or turn_ids or record_ids:
        named = {"session": session, "turn_ids": turn_ids, "record_ids": record_ids}

    async def erase(memory: Memory) -> LifecycleReceipt:
        notes: dict[str, Any] = {
            "derived": derived, "requested_by": requested_by, "reason": reason
        }  # fmt: skip
        if named:
            return await memory.forget_records(scope, **named, **notes)
        from afterturn.cli.progress import watched

        return await watched(await memory.enqueue_forget(scope, **notes), "erased")

    receipt = _run(erase)
    _print_receipt(receipt, as_json=as_json)


@click.command(epilog=examples("afterturn flush acme/alice"))
@scope_argument
@as_json
def flush(scope: MemoryScope, as_json: bool) -> None:
    """Record and publish everything that waits under SCOPE.

    Returns with the receipt, once every turn finished before can be retrieved. Needs neither
    workers nor a broker: what no worker takes is done here.
    """

    async def publish(memory: Memory) -> LifecycleReceipt:
        from afterturn.cli.progress import watched

        return await watched(await memory.enqueue_flush(scope), "published")

    _print_receipt(_run(publish), as_json=as_json)


def _run(work: Callable[[Memory], Awaitable[LifecycleReceipt]]) -> LifecycleReceipt:
    from afterturn.memory import Memory
    from afterturn.settings import Settings

    settings = database_settings(Settings.load())

    async def opened() -> LifecycleReceipt:
        async with Memory(settings) as memory:
            return await work(memory)

    return asyncio.run(opened())


def _print_receipt(receipt: LifecycleReceipt, *, as_json: bool) -> None:
    if as_json:
        print_json(receipt.model_dump(mode="json"))
        return
    print_pairs(receipt_rows(receipt))


def receipt_rows(receipt: LifecycleReceipt) -> dict[str, object]:
    """A receipt in words."""
    took = (receipt.completed_at - receipt.requested_at).total_seconds()
    rows: dict[str, object] = {
        "job": f"{receipt.job_id}, {receipt.kind}, {receipt.outcome} after {took:.2f} s",
        "scope": receipt.scope_path,
    }
    rows |= {f"rows of {table}": count for table, count in receipt.counts.items() if count}
    if not any(receipt.counts.values()):
        rows["rows"] = "none: there was nothing"
    rows["new generation"] = receipt.generation
    if receipt.derived_outside:
        rows["learned from it, kept elsewhere"] = receipt.derived_outside
    if receipt.not_covered:
        rows["not covered"] = ", ".join(receipt.not_covered)
    if receipt.log_head:
        rows["erase log"] = receipt.log_head
    return rows
