"""An OpenID Connect issuer on loopback with real keys, which tests may have misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

CLIENT, SECRET = "wattherd", "client secret"


class Key:
    """A key pair and its name."""

    def __init__(self, kid: str, algorithm: str = "RS256") -> None:
        self.kid, self.algorithm = kid, algorithm
        if algorithm.startswith("ES"):
            self.private: Any = ec.generate_private_key(ec.SECP256R1())
        else:
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def published(self) -> dict[str, Any]:
        kind = jwt.get_algorithm_by_name(self.algorithm)
        found: dict[str, Any] = json.loads(kind.to_jwk(self.private.public_key()))
        return {**found, "kid": self.kid, "use": "sig", "alg": self.algorithm}


class OidcIssuer:
    """Serves discovery, keys and tokens; `people` by the code that they come back with."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.keys = [Key("first")]
        self.people: dict[str, dict[str, Any]] = {}
        self.challenges: dict[str, tuple[str, str, str]] = {}
        """Challenge, nonce and redirect address by code."""
        self.asked: list[str] = []
        self.changes: dict[str, Any] = {}
        """Of the next id token's claims."""
        self.userinfo: dict[str, Any] | None = None
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.begin()
        self.url = f"http://{host}:{self.port}/realm"

    def begin(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
        }

    def token(self, key: Key | None = None, headers: Any = None, **claims: Any) -> str:
        key = key or self.keys[0]
        now = int(time.time())
        known = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "1234",
            "iat": now,
            "exp": now + 300,
            "preferred_username": "ann",
            "groups": ["vision"],
        }
        whole = {name: one for name, one in {**known, **claims}.items() if one is not None}
        headers = {"kid": key.kid, **(headers or {})}
        return jwt.encode(whole, key.private, key.algorithm, headers)

    def log_in(self, url: str, **person: Any) -> dict[str, str]:
        """What a browser comes back with, after its user has logged in here."""
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
        assert (query["client_id"], query["code_challenge_method"]) == (CLIENT, "S256")
        code = f"code-{len(self.challenges)}"
        self.challenges[code] = query["code_challenge"], query["nonce"], query["redirect_uri"]
        self.people[code] = person
        return {"code": code, "state": query["state"], "iss": self.url}

    def exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """Tokens for a code: once, to the client, who knows what the challenge was made of."""
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        pair = ":".join(urllib.parse.quote(one, safe="") for one in (CLIENT, SECRET))
        challenge, nonce, address = self.challenges.pop(form["code"], ("", "", ""))
        made = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
        if given != pair or made.rstrip(b"=").decode() != challenge:
            return None
        if form["redirect_uri"] != address:
            return None
        claims = {"nonce": nonce, **self.people[form["code"]], **self.changes}
        return {"id_token": self.token(**claims), "access_token": "opaque", "token_type": "Bearer"}


def _handler(issuer: OidcIssuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            match self.path.removeprefix("/realm"):
                case "/.well-known/openid-configuration":
                    self._say(issuer.document())
                case "/keys":
                    self._say({"keys": [one.published() for one in issuer.keys]})
                case "/userinfo" if issuer.userinfo is not None:
                    self._say(issuer.userinfo)
                case path if path.startswith("/authorize?"):
                    self._log_in()  # as if its user had typed a password
                case _:
                    self._say({"error": "not_there"}, 404)

        def _log_in(self) -> None:
            back = issuer.log_in(self.path)
            address = issuer.challenges[back["code"]][2]
            self.send_response(302)
            self.send_header("location", f"{address}?{urllib.parse.urlencode(back)}")
            self.send_header("content-length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            issuer.asked.append(self.path)
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = dict(urllib.parse.parse_qsl(body))
            found = issuer.exchange(form, self.headers.get("authorization", ""))
            self._say(found or {"error": "invalid_grant"}, 200 if found else 400)

        def _say(self, document: Any, status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
