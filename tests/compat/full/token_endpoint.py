"""Where librdkafka's tests get tokens: an OAuth 2 server for one run, as their own is.

It gives tokens to a client with an id and a secret, to one that signs a statement about itself (RFC 7523), and to one
that asks as on a machine of Azure.
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from secured import KEY_PASSWORD
from token_issuer import Issuer

CLIENT, SECRET = "123", "abc"
SCOPE: Final = "test"
LASTS_S: Final = 20
"""librdkafka sees once a second whether four fifths of a token's time are over, and proves again after nine tenths. Of
a token of less than ten seconds it may show the old one then, which is good for less than the second that a node has to
have, as Kafka, between two proofs."""
CREDENTIALS: Final = "client_credentials"
STATEMENT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AZURE: Final[Mapping[str, Sequence[str]]] = {
    "__metadata_authentication_type": ["azure_imds"],
    "api-version": ["2025-04-07"],
    "resource": ["api://external_resource_id"],
    "client_id": ["client_id"],
}
"""What has to be asked for on a machine of Azure."""


class TokenEndpoint:
    """On a free port of this machine. `folder` gets the key by which a client signs statements."""

    def __init__(self, issuer: Issuer, folder: Path) -> None:
        self._issuer = issuer
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self._files = {"plain": folder / "statement.key", "encrypted": folder / "statement.encrypted.key"}
        for name, path in self._files.items():
            encryption = NoEncryption() if name == "plain" else BestAvailableEncryption(KEY_PASSWORD.encode())
            path.write_bytes(self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer._answer(self, outer._after_post(self, body))

            def do_GET(self) -> None:
                asked = parse_qs(urlsplit(self.path).query)
                outer._answer(self, asked == AZURE and self.headers.get("Metadata") == "true")

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._url = f"http://127.0.0.1:{self._server.server_address[1]}/retrieve"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _after_post(self, call: BaseHTTPRequestHandler, body: Mapping[str, Sequence[str]]) -> bool:
        """Return whether a client gets a token."""
        if body.get("scope") != [SCOPE]:
            return False
        if body.get("grant_type") == [CREDENTIALS]:
            proof = call.headers.get("Authorization", "").removeprefix("Basic ")
            return b64decode(proof).decode() == f"{CLIENT}:{SECRET}"
        if body.get("grant_type") != [STATEMENT]:
            return False
        try:
            options = {"verify_aud": False}
            jwt.decode(body["assertion"][0], self._key.public_key(), algorithms=["RS256"], options=options)
        except jwt.InvalidTokenError:
            return False
        return True

    def _answer(self, call: BaseHTTPRequestHandler, is_let_in: bool) -> None:
        path = urlsplit(call.path).path
        lasts_s = -1 if path.endswith("/expire") else LASTS_S
        token = self._issuer.token("subject", lasts_s=lasts_s, client_id=CLIENT)
        if path.endswith("/badformat"):
            token += "invalid"
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": lasts_s}
        text = json.dumps(answer if is_let_in else {"error": "invalid_request"}).encode()
        call.send_response(200 if is_let_in else 400)
        call.send_header("Content-Type", "application/json")
        call.send_header("Content-Length", str(len(text)))
        call.end_headers()
        call.wfile.write(text)

    def client_settings(self) -> dict[str, str]:
        """Return what a client is set to, as librdkafka names it."""
        return {
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": SCOPE,
            "sasl.oauthbearer.extensions": "ExtensionworkloadIdentity=develC348S,Extensioncluster=lkc123",
            "sasl.oauthbearer.token.endpoint.url": self._url,
        }

    def variables(self) -> dict[str, str]:
        """Return what librdkafka's tests find in the environment."""
        return {
            "VALID_OIDC_URL": self._url,
            "INVALID_OIDC_URL": f"{self._url}/badformat",
            "EXPIRED_TOKEN_OIDC_URL": f"{self._url}/expire",
            "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(self._files["plain"]),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(self._files["encrypted"]),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": KEY_PASSWORD,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
