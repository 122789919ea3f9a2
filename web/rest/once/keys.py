"""The header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header), and what is made of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from semel.web.rest.bounds import KEY_CHARACTERS_MAX, LANES
from semel.web.rest.errors import bad_request

HEADER: Final = "Idempotency-Key"
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One user's key.

    text:   as the client sent it; the commit token of the transaction
    digest: of user and key; the key of the answer's record
    lane:   which of the user's transactional ids commits it, the same on every gateway
    """

    text: str
    digest: bytes
    lane: int


def key_of(request: Request, user: str) -> RequestKey | None:
    """Return the key of a request; None where it has none. Raises `Problem` 400 for one that is none.

    The draft says that it is a text in quotes; without them it is taken, too.
    """
    given = request.headers.getlist(HEADER)
    if not given:
        return None
    text = given[0].strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if len(given) > 1 or not 0 < len(text) <= KEY_CHARACTERS_MAX or not (text.isascii() and text.isprintable()):
        raise bad_request(
            f"{HEADER} is given once, with 1 to {KEY_CHARACTERS_MAX} printable characters of ASCII: a UUID, for example"
        )
    return request_key(text, user)


def required_key(request: Request, user: str) -> RequestKey:
    """Return the key of a request that must have one. Raises `Problem` 400."""
    key = key_of(request, user)
    if key is None:
        raise bad_request(
            f"give the header {HEADER}, another one for each request and the same for its repetitions: a UUID, for "
            "example. Then it takes effect once, however often it is sent"
        )
    return key


def request_key(text: str, user: str) -> RequestKey:
    """Return the key with its digest and its lane.

    >>> request_key("a", "") == request_key("a", "alice")
    False
    """
    digest = hashlib.blake2b(f"{len(user)}:{user}{text}".encode(), digest_size=_DIGEST_BYTES).digest()
    return RequestKey(text, digest, int.from_bytes(digest[:4], "big") % LANES)


def fingerprint_of(request: Request, body: bytes) -> str:
    """Return what tells one request from another under the same key: its path and its body, to the byte."""
    return hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + body).hexdigest()
