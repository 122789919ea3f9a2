"""Tokens of an OAuth 2 server, for a client with an id and a secret of its own (client credentials, RFC 6749 4.4;
KIP-768): asked for, kept, and asked for again before they end.

The server is asked in a thread of its own, so that nobody waits who has a token that still holds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import math
import re
import threading
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final
from urllib.parse import urlencode

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, stop_when_event_set
from tenacity.nap import sleep_using_event

from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.randomness import source
from semel.runtime.backoff import Backoff
from semel.runtime.bounded_http import ask
from semel.runtime.clock import Clock, SystemClock
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.sdk.transport.token_form import TOKEN, TOKEN_BYTES_MAX

_log = logging.getLogger("semel.client")

TIMEOUT_S: Final = 10.0
"""How long one answer may take, all of it."""
ANSWER_BYTES_MAX: Final = 64 << 10
RETRY_S: Final = 30.0
"""How long the server is asked again and again before those that wait hear why there is no token."""
_BACKOFF: Final = Backoff(100, 10_000)
"""Between these, as Kafka's sasl.login.retry.backoff.ms and sasl.login.retry.backoff.max.ms."""
_RENEWED_AGAIN_S: Final = 10.0
"""So long after it could not be renewed a token is used before that is tried again."""
_RENEWED_AT: Final = 0.8
"""The part of a token's time after which another one is asked for, as in Kafka; up to a twentieth later."""
_JITTER: Final = 0.05
_LASTS_S_MAX: Final = 366 * 86_400.0
_ERROR: Final = re.compile(r"[a-z_]{1,40}")
_TEMPORARY: Final = (408, 425, 429)


class NoTokenError(ConnectionLostError):
    """There is no token now; there may be one later."""


class _MayPassError(Exception):
    """The server did not give a token this time."""


class EndpointTokens:
    """Of one client. From any thread. The secret is asked for each time, because its file may have another one."""

    def __init__(
        self,
        url: str,
        client_id: str,
        secret: Callable[[], str],
        scope: str = "",
        ca_location: str = "",
        clock: Clock | None = None,
    ) -> None:
        """`clock`: by which tokens end; None: the machine's."""
        self._clock = clock or SystemClock()
        self._url = url
        self._client_id = client_id
        self._secret = secret
        self._scope = scope
        self._ca_location = ca_location
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._token = ""
        self._ends_at = self._renewed_at = 0.0
        self._asked: Future[str] | None = None
        self._why = ""
        """Why the last attempt gave no token, where one is under way."""

    def current(self) -> str:
        """Return a token that holds, and have another one asked for where it is time. Raises `NoTokenError`."""
        token, _ = self._look()
        if not token:
            raise NoTokenError(f"there is no token of {self._url} now")
        return token

    async def ready(self, timeout_s: float, *, fresh: bool = False) -> str:
        """Return a token that holds, waiting for one where there is none.

        fresh: wait also for one that is asked for because the one before is near its end
        Raises `NoTokenError`, and `FatalError` where the server refuses this client.
        """
        token, asked = self._look()
        if asked is None or (token and not fresh):
            return token
        waiting = asyncio.wrap_future(asked)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where nobody waits any more
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(waiting)
        except TimeoutError:
            if token:
                return token
            why = f": {self._why}" if self._why else ""
            raise NoTokenError(f"{self._url} gave no token within {timeout_s:.3g} s{why}") from None
        except SemelError:
            if token:
                return token
            raise

    def refused(self, token: str) -> None:
        """A node has not taken a token: another one is asked for before the next attempt."""
        with self._lock:
            if token == self._token:
                self._ends_at = 0.0

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> tuple[str, Future[str] | None]:
        """Return a token that holds, or none; and what will be another one, where one is asked for."""
        with self._lock:
            now = self._clock.monotonic()
            token = self._token if now < self._ends_at else ""
            if token and now < self._renewed_at:
                return token, None
            if self._asked is None:
                self._asked = Future()
                threading.Thread(target=self._obtain, args=(self._asked,), name="semel-token", daemon=True).start()
            return token, self._asked

    def _obtain(self, asked: Future[str]) -> None:
        """Ask until there is a token, or for long enough. In a thread of its own."""
        retrying = Retrying(
            retry=retry_if_exception_type(_MayPassError),
            stop=stop_after_delay(RETRY_S) | stop_when_event_set(self._closed),
            wait=lambda state: _BACKOFF.jittered_s(state.attempt_number),
            sleep=sleep_using_event(self._closed),
            before_sleep=self._tell,
            reraise=True,
        )
        error: Exception
        try:
            token, lasts_s, since = retrying(self._ask)
        except SemelError as failure:
            error = failure
        except _MayPassError as failure:
            error = NoTokenError(f"{self._url} gives no token: {failure}")
        except Exception as failure:  # nobody would hear of it, and all would wait
            error = NoTokenError(f"{self._url} could not be asked for a token: {type(failure).__name__}")
        else:
            with self._lock:
                self._token, self._asked, self._why = token, None, ""
                self._ends_at = since + lasts_s
                self._renewed_at = since + lasts_s * (_RENEWED_AT + _JITTER * source().random())
            asked.set_result(token)
            return
        with self._lock:
            self._asked = None
            now = self._clock.monotonic()
            self._renewed_at = now + _RENEWED_AGAIN_S
            is_alone = now < self._ends_at
        if is_alone:  # otherwise those who wait hear of it
            _log.warning("the token was not renewed, and is used until its end: %s", error)
        asked.set_exception(error)

    def _tell(self, state: RetryCallState) -> None:
        self._why = "" if state.outcome is None else str(state.outcome.exception())
        _log.debug("asking %s for a token again: %s", self._url, self._why)

    def _ask(self) -> tuple[str, float, float]:
        """Ask once. Returns a token, how many seconds it lasts, and since when."""
        since = self._clock.monotonic()
        wanted = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope else {})}
        proof = b64encode(f"{self._client_id}:{self._secret()}".encode()).decode()
        try:
            answer = ask(
                self._url,
                method="POST",
                headers={
                    "Accept": "application/json",
                    "Authorization": f"Basic {proof}",
                    "Content-Type": "application/x-www-form-urlencoded",
                },
                body=urlencode(wanted).encode(),
                timeout_s=TIMEOUT_S,
                bytes_max=ANSWER_BYTES_MAX,
                ca_location=self._ca_location,
            )
        except http.client.HTTPException as error:
            raise _MayPassError(f"it does not answer by HTTP ({type(error).__name__})") from None
        except (OSError, ValueError) as error:
            raise _MayPassError(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
        if answer.status == http.client.OK:
            return *parse_token(answer.body, self._clock.now_ms() / 1000), since
        if 400 <= answer.status < 500 and answer.status not in _TEMPORARY:
            raise FatalError(
                f"{self._url} refuses the client {self._client_id!r}: it answers {answer.status}{_reason(answer.body)}",
                ErrorCode.SASL_AUTHENTICATION_FAILED,
            )
        raise _MayPassError(f"it answers {answer.status}")


def parse_token(body: bytes, now_s: float) -> tuple[str, float]:
    """Return the token of an answer, and how many seconds it lasts.

    now_s: since 1970, for an answer that does not say how long: then the token itself says when it ends
    Raises `_MayPassError`, which repeats nothing of it.
    """
    found = _json(body)
    if not isinstance(found, dict):
        raise _MayPassError("its answer is no JSON object")
    token = found.get("access_token")
    if not isinstance(token, str) or len(token) > TOKEN_BYTES_MAX or not TOKEN.fullmatch(token):
        raise _MayPassError(f"its answer has no access_token of up to {TOKEN_BYTES_MAX} letters")
    kind = found.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise _MayPassError("its token is not of the type bearer")
    ends_s = _number(_claims(token).get("exp"))
    lasts_s = _number(found.get("expires_in"))
    if lasts_s is None:
        if ends_s is None:
            raise _MayPassError("it does not say how long the token lasts: expires_in, or exp in the token")
        lasts_s = ends_s - now_s
    if lasts_s <= 0:
        raise _MayPassError("its token has ended already")
    return token, min(lasts_s, _LASTS_S_MAX)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _claims(token: str) -> dict[str, Any]:
    """Return what a JWT says, unchecked: nodes check it."""
    parts = token.split(".")
    try:
        found = _json(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))) if len(parts) == 3 else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    """Return a number, also one in quotes as some servers send it; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _reason(body: bytes) -> str:
    """Return the error's name in an answer that refuses (RFC 6749 5.2). Nothing else of it is shown."""
    found = _json(body)
    name = found.get("error") if isinstance(found, dict) else None
    return f" ({name})" if isinstance(name, str) and _ERROR.fullmatch(name) else ""
