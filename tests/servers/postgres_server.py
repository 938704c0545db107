"""A PostgreSQL of our own on loopback, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest


def program(name: str) -> str:
    """Path of a program of the server; the test is skipped without it."""
    found = shutil.which(name) or next(
        map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    if found is None:
        pytest.skip(f"no {name}: scripts/test-servers.sh installs it")
    return found


class Postgres:
    """One server in a folder of its own; it can be killed and started again."""

    def __init__(self) -> None:
        program("initdb")  # where there is none, the tests are skipped: no user `postgres` either
        self.folder = Path(tempfile.mkdtemp(prefix="wattherd-postgres-"))
        self.user = "postgres" if os.geteuid() == 0 else None  # it refuses to be root
        if self.user:
            shutil.chown(self.folder, self.user)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._databases = 0
        self._run(
            "initdb", "-D", "data", "-U", "wattherd", "-A", "trust", "--no-sync", "-E", "UTF8"
        )
        self.start()

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [program(name), *arguments],
            cwd=self.folder,
            user=self.user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        self._run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)

    def kill(self) -> None:
        """Stop as by a crash: connections are cut, the log is replayed at the next start."""
        self._run("pg_ctl", "stop", "-w", "-D", "data", "-m", "immediate")

    def database(self) -> str:
        """The URL of a new, empty database."""
        import sqlalchemy as sa

        self._databases += 1
        name = f"store_{self._databases}"
        engine = sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self.url(name)

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql+psycopg://wattherd@127.0.0.1:{port or self.port}/{database}"

    def close(self) -> None:
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Wire:
    """Passes bytes on to a server; told to, it loses the answer to the next COMMIT."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lose_commit = False
        self.cut = False
        """Whether new connections end at once."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            if self.cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            deaf = threading.Event()
            for one, other in ((client, server), (server, client)):
                arguments = (one, other, one is client, deaf)
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(
        self, one: socket.socket, other: socket.socket, up: bool, deaf: threading.Event
    ) -> None:
        try:
            while chunk := one.recv(65_536):
                if up and self.lose_commit and b"COMMIT" in chunk:
                    self.lose_commit = False
                    deaf.set()
                if up or not deaf.is_set():
                    other.sendall(chunk)
                elif deaf.is_set():
                    break  # the answer has come, so the commit is through; nobody is told
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # the other thread may be waiting on it
            end.close()

    def close(self) -> None:
        self._listener.close()
