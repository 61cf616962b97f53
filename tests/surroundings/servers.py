"""Servers as others run them: PostgreSQL with TLS and passwords, PgBouncer, a broker behind TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import asyncpg

from afterturn.embedded.identity import choose_identity
from afterturn.processes import Launch, spawn
from tests.fleet.running import any_port, wait_until

PASSWORD: Final = "s3cr:t/w@rd %&?"  # with what a URL must encode
QUOTED: Final = quote(PASSWORD, safe="")
DEBIAN_15: Final = Path("/usr/lib/postgresql/15/bin")
PGBOUNCER: Final = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
OPENSSL: Final = shutil.which("openssl")

_HBA: Final = """
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""


@dataclass(frozen=True)
class Certificate:
    """For 127.0.0.1, signed by itself."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Certificate:
        """With the machine's openssl."""
        made = cls(folder / "server.crt", folder / "server.key")
        subprocess.run(
            [
                str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                "-keyout", str(made.key), "-out", str(made.certificate),
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        made.key.chmod(0o600)
        return made


@dataclass
class Postgres:
    """A server of its own, at a port of loopback and a socket in its folder."""

    folder: Path
    binaries: Path
    certificate: Certificate | None = None
    port: int = field(default_factory=any_port)
    _process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Make its data. Who connects over TCP needs TLS and the password."""
        self.folder.mkdir(mode=0o700)
        word = self.folder / "word"
        word.write_text(PASSWORD)
        self._give(self.folder)
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "scram-sha-256",
            "--pwfile", str(word), "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        (self._data / "pg_hba.conf").write_text(_HBA)
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "fsync": "off",
        }
        if self.certificate is not None:
            for path in (self.certificate.certificate, self.certificate.key):
                copy = self._data / path.name
                shutil.copy(path, copy)
                copy.chmod(0o600)
                self._give(copy)
            settings |= {"ssl": "on"}
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = spawn(
                [self.binaries / "postgres", "-D", self._data], self._launch(), stdout=log
            )
        wait_until(self._answers, "PostgreSQL answers")

    def stop(self) -> None:
        """Fast: whoever is connected is thrown out."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def url(self, *, user: str = "postgres", word: str = QUOTED, query: str = "") -> str:
        """Over TCP."""
        return f"postgresql://{user}:{word}@127.0.0.1:{self.port}/postgres{query}"

    @property
    def socket_url(self) -> str:
        """Over its socket, without a password."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _launch(self) -> Launch:
        return choose_identity().applied_to(
            Launch(env={"PATH": os.defpath, "TZ": "UTC"}, cwd="/", death_signal=signal.SIGINT)
        )

    def _give(self, path: Path) -> None:
        account = choose_identity().account
        if account is not None:
            os.chown(path, *account)

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / "initdb.log").open("ab") as log:
            process = spawn([self.binaries / name, *arguments], self._launch(), stdout=log)
        assert process.wait() == 0, (self.folder / "initdb.log").read_text()

    def _answers(self) -> bool:
        async def ask() -> None:
            connection = await asyncpg.connect(self.socket_url)
            await connection.close()

        with contextlib.suppress(OSError, asyncpg.PostgresError):
            asyncio.run(ask())
            return True
        return False


@contextlib.contextmanager
def pgbouncer(folder: Path, server_folder: str, server_port: int) -> Iterator[int]:
    """PgBouncer in transaction mode with few connections, in front of a server's socket; its port.

    Every database of the server by its name.
    """
    folder.mkdir(mode=0o700)
    port = any_port()
    (folder / "pgbouncer.ini").write_text(
        f"""
[databases]
* = host={server_folder} port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
"""
    )
    identity = choose_identity()
    if identity.account is not None:
        os.chown(folder, *identity.account)
        os.chown(folder / "pgbouncer.ini", *identity.account)
    with (folder / "pgbouncer.log").open("ab") as log:
        process = spawn(
            [str(PGBOUNCER), str(folder / "pgbouncer.ini")],
            identity.applied_to(Launch(cwd="/")),
            stdout=log,
        )
    try:
        wait_until(lambda: _listens(port), "PgBouncer listens")
        yield port
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def behind_tls(certificate: Certificate, target: int) -> Iterator[int]:
    """A port that speaks TLS and passes everything on to the one of loopback; its number.

    The broker of the wheel is built without TLS, as many are that stand behind a proxy.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, context, target), daemon=True).start()
        yield int(listener.getsockname()[1])
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, context: ssl.SSLContext, target: int) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(client, context, target), daemon=True).start()


def _pass_on(client: socket.socket, context: ssl.SSLContext, target: int) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.enter_context(client)
        secure = stack.enter_context(context.wrap_socket(client, server_side=True))
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", target)))
        back = threading.Thread(target=_copy, args=(plain, secure), daemon=True)
        back.start()
        _copy(secure, plain)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
