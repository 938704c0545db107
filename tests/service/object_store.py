"""An object store on loopback that checks signatures and rights, and a bad wire to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server", reason="moto (dev group) is not installed")
import botocore.session

START_S = 120.0
ARN = "arn:aws:s3:::open"
POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": [ARN, f"{ARN}/*"]}],
}


class ObjectStore:
    """A server with the buckets `open` and `shut`; its keys may use the first one."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        with (folder / "moto.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1000000"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        self._await()
        self.id, self.key = self._user()
        self.client = self.client_of("s3", self.id, self.key)
        for bucket in ("open", "shut"):
            self.client.create_bucket(Bucket=bucket)
        plain = {"Content-Type": "text/plain"}
        checked = urllib.request.Request(f"{self.url}/moto-api/reset-auth", b"0", plain)
        urllib.request.urlopen(checked).close()

    def client_of(self, service: str, key_id: str = "any", key: str = "any") -> Any:
        """Asks the server itself, whatever wire is under test."""
        return botocore.session.Session().create_client(
            service, region_name="us-east-1", endpoint_url=self.url,
            aws_access_key_id=key_id, aws_secret_access_key=key,
        )  # fmt: skip

    def _await(self) -> None:
        end_s = time.monotonic() + START_S
        while True:
            assert self._process.poll() is None, "the store did not start"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert time.monotonic() < end_s
            time.sleep(0.1)

    def _user(self) -> tuple[str, str]:
        iam = self.client_of("iam")
        iam.create_user(UserName="ann")
        document = json.dumps(POLICY)
        iam.put_user_policy(UserName="ann", PolicyName="open", PolicyDocument=document)
        found = iam.create_access_key(UserName="ann")["AccessKey"]
        return found["AccessKeyId"], found["SecretAccessKey"]

    def credentials(self, path: Path, profile: str = "default") -> Path:
        """A credentials file."""
        text = f"[{profile}]\naws_access_key_id={self.id}\naws_secret_access_key={self.key}\n"
        path.write_text(text)
        return path

    def put(self, key: str, data: bytes, **more: Any) -> None:
        self.client.put_object(Bucket="open", Key=key, Body=data, **more)

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket="open", Key=key)["Body"].read())

    def keys(self, prefix: str = "") -> list[str]:
        found = self.client.list_objects_v2(Bucket="open", Prefix=prefix)
        return [one["Key"] for one in found.get("Contents", ())]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class BadWire:
    """A port that leads to the store; once so many bytes came, `cuts` answers break off."""

    def __init__(self, port: int, *, cuts: int, after_bytes: int) -> None:
        self._to, self._cuts, self._after = port, cuts, after_bytes
        self._lock = threading.Lock()
        self.served = 0
        """Bytes that came through."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def cuts_left(self) -> int:
        return self._cuts

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for pump in (self._up, self._down):
                    threading.Thread(target=pump, args=(near, far), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65_536):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _down(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            while data := far.recv(65_536):
                self.served += len(data)
                if self.served > self._after and self._cut():
                    near.shutdown(socket.SHUT_RDWR)
                    return
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)

    def _cut(self) -> bool:
        with self._lock:
            self._cuts -= 1
            return self._cuts >= 0

    def close(self) -> None:
        self._server.close()
