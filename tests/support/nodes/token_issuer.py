"""Somebody who makes tokens for tests, with a file of public keys, and nodes that take them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE, ISSUER = "semel-test", "https://issuer.example.com"
TOKENS: dict[str, Any] = {
    "sasl_enabled_mechanisms": ("OAUTHBEARER",),
    "sasl_oauthbearer_expected_audience": (AUDIENCE,),
    "sasl_oauthbearer_expected_issuer": ISSUER,
    "sasl_oauthbearer_clock_skew_seconds": 0,
}
"""Settings of a node that takes tokens, without where its keys and its listeners are."""
_RSA = [rsa.generate_private_key(public_exponent=65_537, key_size=2_048) for _ in range(2)]
_EC = ec.generate_private_key(ec.SECP256R1())


def keys_of(*keys: Any) -> dict[str, Any]:
    """Return a JWKS with these private keys' public ones: RSA keys of names k0, k1, and so on."""
    entries = []
    for number, key in enumerate(keys):
        algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        entries.append({**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": f"k{number}", "use": "sig"})
    return {"keys": entries}


class Issuer:
    """Signs tokens. Its public keys are in the file `path`: k0 (RSA) and k1 (EC)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jwks.json"
        self.rsa, self.other_rsa, self.ec = _RSA[0], _RSA[1], _EC
        self.publish(self.rsa, self.ec)

    def publish(self, *keys: Any) -> None:
        """Let these be the public keys."""
        made = self.path.with_suffix(".new")
        made.write_text(json.dumps(keys_of(*keys)))
        made.replace(self.path)

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a node whose two listeners take tokens."""
        return {
            **dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0"),
            "sasl_oauthbearer_jwks_endpoint_url": self.url,
            **TOKENS,
            **more,
        }

    def token(
        self,
        user: str = "alice",
        *,
        lasts_s: float = 600,
        key: Any = None,
        algorithm: str = "RS256",
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Return a token; a claim of None is left out."""
        now = int(time.time())
        every = {"sub": user, "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": int(now + lasts_s), **claims}
        every = {name: value for name, value in every.items() if value is not None}
        kid = "k1" if algorithm.startswith("ES") else "k0"
        signs = key if key is not None else self.ec if algorithm.startswith("ES") else self.rsa
        return jwt.encode(every, signs, algorithm, headers={"kid": kid, **(headers or {})})
