"""Rings from a calling process: what arrives, and what happens when the broker does not answer."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from afterturn.jobs import rings
from afterturn.jobs.names import EXTRACT_QUEUE, LIFECYCLE_QUEUE, RECORD_QUEUE, RELEASE
from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings

from .running import Valkey, any_port, black_hole, python, wait_until

MakePublisher = Callable[..., RingPublisher]


def _ids(message: dict[str, Any]) -> list[int]:
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert kwargs == {"release": RELEASE}
    ids: list[int] = args[0]
    return ids


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_PAUSE_SECONDS", (0.0, 0.0))


@pytest.fixture
def endless_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_PAUSE_SECONDS", (3600.0, 3600.0))


class TestDelivery:
    def test_ids_of_a_kind_travel_together(
        self, broker: Valkey, publisher_for: MakePublisher
    ) -> None:
        """Rings within the linger become one message a kind, each id once, in its own queue."""
        publisher = publisher_for(broker.url, ring_linger_seconds=0.5)
        publisher.ring("record", [1, 2])
        publisher.ring("forget", [7])
        publisher.ring("record", [2, 3])
        wait_until(lambda: publisher.stats().sent == 4, "four ids are sent")

        (record,) = broker.messages(RECORD_QUEUE)
        (forget,) = broker.messages(LIFECYCLE_QUEUE)
        assert (record["headers"]["task"], _ids(record)) == ("afterturn.record_turns", [1, 2, 3])
        assert (forget["headers"]["task"], _ids(forget)) == ("afterturn.forget", [7])

    @pytest.mark.parametrize("kind", ["flush", "forget", "expire"])
    def test_an_erase_is_rung_while_turns_linger(
        self, broker: Valkey, publisher_for: MakePublisher, kind: Any
    ) -> None:
        """Nobody waits for the record of a turn, but somebody may wait for the erase."""
        publisher = publisher_for(broker.url, ring_linger_seconds=3600.0)
        publisher.ring("record", [1])
        publisher.ring(kind, [7])
        wait_until(lambda: publisher.stats().sent == 1, "the erase is sent")
        (message,) = broker.messages(LIFECYCLE_QUEUE)
        assert _ids(message) == [7]
        assert publisher.stats().waiting == 1

    def test_a_full_message_does_not_linger(
        self, broker: Valkey, publisher_for: MakePublisher
    ) -> None:
        """There is nothing to wait for; what the message does not hold goes with it."""
        publisher = publisher_for(broker.url, ring_linger_seconds=3600.0)
        for number in range(rings.IDS_PER_MESSAGE - 1):
            publisher.ring("record", [number])
        assert publisher.stats().waiting == rings.IDS_PER_MESSAGE - 1
        publisher.ring("record", [1_000, 1_001])
        total = rings.IDS_PER_MESSAGE + 1
        wait_until(lambda: publisher.stats().sent == total, "all are sent")
        assert len(broker.messages(RECORD_QUEUE)) == 2

    @pytest.mark.parametrize(
        ("kind", "queue", "limit"),
        [
            ("record", RECORD_QUEUE, rings.IDS_PER_MESSAGE),
            ("extract", EXTRACT_QUEUE, rings.IDS_PER_SLOW_MESSAGE),
        ],
    )
    def test_a_long_batch_is_cut(
        self, broker: Valkey, publisher_for: MakePublisher, kind: Any, queue: str, limit: int
    ) -> None:
        """No message carries more than its limit; all ids arrive, in order."""
        publisher = publisher_for(broker.url)
        publisher.ring(kind, range(120))
        wait_until(lambda: publisher.stats().sent == 120, "all are sent")
        batches = [_ids(message) for message in broker.messages(queue)]
        assert max(map(len, batches)) == limit
        assert [number for batch in batches for number in batch] == list(range(120))

    def test_close_sends_what_waits(self, broker: Valkey, publisher_for: MakePublisher) -> None:
        """Closing sends first; rings after it are dropped and counted; closing twice is legal."""
        publisher = publisher_for(broker.url, ring_linger_seconds=3600.0)
        publisher.ring("flush", [1])
        publisher.close(30.0)
        publisher.close(30.0)
        publisher.ring("flush", [2, 3])
        stats = publisher.stats()
        assert (stats.sent, stats.dropped, stats.waiting) == (1, 2, 0)
        assert len(broker.messages(LIFECYCLE_QUEUE)) == 1

    def test_the_hosts_celery_is_left_alone(
        self, broker: Valkey, directory: Any, publisher_for: MakePublisher
    ) -> None:
        """Variables of the host's Celery divert no ring, and its current app stays its own."""
        script = """
import sys
from celery import Celery, current_app
host = Celery("host", broker="memory://")
from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings
publisher = RingPublisher(sys.argv[1], Settings())
publisher.ring("record", [5])
publisher.close(30.0)
print(publisher.stats().sent, current_app.main, host.conf.broker_url)
"""
        elsewhere = f"redis://127.0.0.1:{any_port()}/0"
        env = {"CELERY_BROKER_URL": elsewhere, "CELERY_LOADER": "no.such:Loader"}
        assert python(script, broker.url, env=env).split() == ["1", "host", elsewhere]
        assert [_ids(message) for message in broker.messages(RECORD_QUEUE)] == [[5]]

    def test_a_queue_that_nobody_empties_stays_bounded(
        self, broker: Valkey, publisher_for: MakePublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rings for a queue that is long already are dropped and counted."""
        monkeypatch.setattr(rings, "QUEUE_MESSAGES_MAX", 3)
        publisher = publisher_for(broker.url)
        publisher.ring("extract", range(5 * rings.IDS_PER_SLOW_MESSAGE))
        wait_until(lambda: publisher.stats().waiting == 0, "nothing waits")
        publisher.close(30.0)
        assert len(broker.messages(EXTRACT_QUEUE)) == 3
        assert publisher.stats().sent == 3 * rings.IDS_PER_SLOW_MESSAGE
        assert publisher.stats().dropped == 2 * rings.IDS_PER_SLOW_MESSAGE

    def test_celery_is_imported_on_the_publishers_thread(self) -> None:
        """Importing and making a publisher imports no Celery."""
        script = """
import sys
from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings
publisher = RingPublisher("redis://127.0.0.1:1/0", Settings())
publisher.close()
print([name for name in sys.modules if name.split(".")[0] in ("celery", "kombu", "redis")])
"""
        assert python(script).strip() == "[]"

    def test_rediss_is_encrypted(self, publisher_for: MakePublisher) -> None:
        """With `rediss://` the first byte sent opens a TLS handshake."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(30)
            publisher = publisher_for(f"rediss://127.0.0.1:{server.getsockname()[1]}/0")
            publisher.ring("record", [1])
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b"\x16"


class TestBrokerOutOfReach:
    """The broker's verdict takes an hour here: whatever returns before it, did not wait."""

    def test_frozen(self, tcp_broker: Valkey, publisher_for: MakePublisher) -> None:
        """Neither ringing nor closing waits for a broker that accepts and never answers."""
        publisher = publisher_for(tcp_broker.url, broker_timeout_seconds=3600.0)
        publisher.ring("record", [1])
        wait_until(lambda: publisher.stats().sent == 1, "connected")
        tcp_broker.freeze()
        _assert_caller_is_not_held_up(publisher)

    def test_black_holed(self, publisher_for: MakePublisher) -> None:
        """Neither ringing nor closing waits for a connection that is never made."""
        with black_hole() as port:
            publisher = publisher_for(f"redis://127.0.0.1:{port}/0", broker_timeout_seconds=3600.0)
            _assert_caller_is_not_held_up(publisher)

    @pytest.mark.usefixtures("no_pause")
    @pytest.mark.parametrize("how", ["freeze", "kill"])
    def test_rings_arrive_again_afterwards(
        self, broker: Valkey, publisher_for: MakePublisher, how: str
    ) -> None:
        """What is rung during an outage counts as failed; afterwards rings arrive again."""
        publisher = publisher_for(broker.url, broker_timeout_seconds=0.2)
        publisher.ring("record", [1])
        wait_until(lambda: publisher.stats().sent == 1, "connected")
        getattr(broker, how)()
        publisher.ring("record", [2, 3])
        wait_until(lambda: publisher.stats().failed == 2, "the outage is noticed")
        broker.thaw() if how == "freeze" else broker.start()
        publisher.ring("record", [4])
        wait_until(lambda: publisher.stats().sent == 2, "rings arrive again")

    @pytest.mark.usefixtures("endless_pause")
    def test_the_breaker(self, publisher_for: MakePublisher) -> None:
        """After a failure the broker is left in peace: later rings wait, untried, then drop."""
        publisher = publisher_for(f"redis://127.0.0.1:{any_port()}/0")
        publisher.ring("record", [1, 2, 3])
        wait_until(lambda: publisher.stats().failed == 3, "the first message fails")
        publisher.ring("record", [4])
        publisher.close(30.0)
        stats = publisher.stats()
        assert (stats.failed, stats.dropped, stats.sent) == (3, 1, 0)

    @pytest.mark.usefixtures("endless_pause")
    def test_overflow_is_counted(self, publisher_for: MakePublisher) -> None:
        """Beyond `rings_max` ids are dropped and counted, the ones before stay."""
        publisher = publisher_for(f"redis://127.0.0.1:{any_port()}/0", rings_max=10)
        publisher.ring("record", [0])
        wait_until(lambda: publisher.stats().failed == 1, "the breaker is open")
        publisher.ring("record", range(100, 125))
        assert (publisher.stats().waiting, publisher.stats().dropped) == (10, 15)


class TestForks:
    def test_parent_and_child_ring_over_connections_of_their_own(self, broker: Valkey) -> None:
        """After a fork both ring; the child inherits neither connection nor waiting rings."""
        script = """
import os, sys, time
from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings
publisher = RingPublisher(sys.argv[1], Settings(ring_linger_seconds=0.3))
publisher.ring("record", [1])
while publisher.stats().sent < 1:
    time.sleep(0.01)
publisher.ring("record", [2])  # still lingers when the child begins
pid = os.fork()
publisher.ring("record", [3 if pid else 4])
publisher.close(30.0)
assert publisher.stats().sent == (3 if pid else 1), publisher.stats()
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
        python(script, broker.url)
        sent: dict[str, list[int]] = {}
        for message in broker.messages(RECORD_QUEUE):
            sent.setdefault(message["headers"]["origin"], []).extend(_ids(message))
        assert sorted(map(sorted, sent.values())) == [[1, 2, 3], [4]]

    def test_a_fork_during_the_first_import(self, broker: Valkey) -> None:
        """A process that forks right after its first ring gives the child a Celery that works."""
        script = """
import os, sys
from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings
publisher = RingPublisher(sys.argv[1], Settings(ring_linger_seconds=0.0))
publisher.ring("record", [1])
while "celery" not in sys.modules:
    pass
pid = os.fork()
if not pid:
    import celery.app.amqp
    publisher.ring("record", [2])
    publisher.close(30.0)
    os._exit(0 if publisher.stats().sent == 1 else 1)
assert os.waitpid(pid, 0)[1] == 0
publisher.close(30.0)
"""
        python(script, broker.url)
        assert sorted(_ids(m)[0] for m in broker.messages(RECORD_QUEUE)) == [1, 2]

    def test_no_thread_before_the_first_ring(self, settings: Settings) -> None:
        """A publisher that was never used holds no thread and no connection."""
        before = threading.active_count()
        publisher = RingPublisher(str(settings.broker_url), settings)
        assert publisher.stats().waiting == 0
        publisher.close()
        assert threading.active_count() == before


def _assert_caller_is_not_held_up(publisher: RingPublisher) -> None:
    publisher.ring("record", [2])
    publisher.ring("flush", [3])
    publisher.close(0.05)
    stats = publisher.stats()
    assert stats.failed == 0  # the verdict is still out
    assert stats.waiting == 0
