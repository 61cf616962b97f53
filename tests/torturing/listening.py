"""The listener: hears every command that reaches the broker; none may hold a marker."""

from __future__ import annotations

import asyncio
import random
from urllib.parse import urlsplit

from afterturn import Memory, embedded
from tests.torturing.acting import Actor
from tests.torturing.words import markers_in_bytes, shown

_OVERLAP = 64


async def listen(actor: Actor, memory: Memory, rng: random.Random) -> None:
    """MONITOR until the connection ends."""
    servers = await asyncio.to_thread(embedded.status, memory.settings.home)
    if servers is None or servers.broker_url is None:
        await actor.pause(0.2)
        return
    socket = urlsplit(embedded.redis_client_url(servers.broker_url)).path
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        await actor.pause(0.2)
        return
    writer.write(b"MONITOR\r\n")
    heard, rest = 0, b""
    ending = asyncio.create_task(actor.stopping.wait())
    try:
        while not actor.stopping.is_set():
            reading = asyncio.create_task(reader.read(1 << 16))
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                break
            try:
                chunk = reading.result()
            except OSError:
                break
            if not chunk:
                break
            heard += len(chunk)
            for word in markers_in_bytes(rest + chunk):
                actor.note("violation", op="", error=f"the broker was told {shown(word)}")
            rest = chunk[-_OVERLAP:]
    finally:
        ending.cancel()
        writer.close()
        actor.note("listened", bytes=heard)
