"""A user's password stays on the driver: the tasks of its queries log in with a delegation token (KIP-48).

    with semel.spark.delegated({"kafka.bootstrap.servers": ..., "kafka.sasl.username": ...}) as options:
        rows = spark.readStream.format("semel").options(**options, subscribe="orders").load()
        ...
        query.awaitTermination()

Spark hands a query's options to its executors. These have the token in place of the user, so nothing that leaves the
driver has the password. A token that is renewed stays the same, and the tasks continue with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from semel.protocol.delegation_tokens import DelegationToken, NewDelegationToken
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.sdk.admin.api import Admin
from semel.sdk.transport.login import MECHANISM, OAUTHBEARER, PASSWORD, PLAIN_WITHOUT_TLS, USERNAME
from semel.sdk.transport.options import Bootstrap
from semel.spark.options import BOOTSTRAP, KAFKA, KAFKA_BOOTSTRAP, OptionReader, is_security, redacted, without_secrets

_log = logging.getLogger("semel.spark")

_RETRY_S_MAX: Final = 30.0
_WAIT_S_MIN: Final = 0.05
_GONE: Final = (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_EXPIRED)


@contextmanager
def delegated(options: Mapping[str, str], *, max_lifetime_ms: int | None = None) -> Iterator[dict[str, str]]:
    """Give options of source and sink that have a delegation token in place of a user, until the block ends.

    The token is renewed meanwhile, for as long as the nodes let it (delegation.token.max.lifetime.ms, a week by
    default): a query that is to run longer is started again before that. At the end it is taken back, so end the
    queries in the block.

    options:         as the source and the sink take them, with the user's own credentials; those that are not about how
                     the cluster is reached stay as they are
    max_lifetime_ms: a shorter bound of the token's life
    Raises `UsageError` where no user is named, and what `Admin.create_delegation_token` raises.
    """
    bootstrap = _bootstrap(options)
    with Admin(str(bootstrap), client_id="semel-spark-driver") as admin:
        admin.delegation_tokens()  # first: to connect can take seconds, and the token's time begins when it is made
        began = time.monotonic()
        made = admin.create_delegation_token(max_lifetime_ms=max_lifetime_ms)
        keeper = _Keeper(admin, made.token, began)
        keeper.start()
        try:
            yield _with_token(options, bootstrap, made)
        finally:
            keeper.stop()
            try:
                admin.expire_delegation_token(made.token.token_id)
            except SemelError as error:
                _log.warning("the delegation token %s was not taken back: %s", made.token.token_id, error.message)


def _bootstrap(options: Mapping[str, str]) -> Bootstrap:
    try:
        found = OptionReader("delegated block", options, (BOOTSTRAP, KAFKA_BOOTSTRAP), {}).bootstrap()
        if found.security.login is None:
            raise UsageError(
                f"no user is named who could have a delegation token: give {KAFKA}{USERNAME} and {KAFKA}{PASSWORD}"
            )
        return found
    except UsageError as error:
        raise UsageError(f"{without_secrets(error.message)} (options: {redacted(options)})") from None


def _with_token(options: Mapping[str, str], bootstrap: Bootstrap, made: NewDelegationToken) -> dict[str, str]:
    """Return options with a token, and nothing of the user. Spark itself redacts names such as these."""
    security = bootstrap.security
    assert security.login is not None
    tls = {} if security.tls is None else security.tls.options()
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() not in (BOOTSTRAP, KAFKA_BOOTSTRAP) and not is_security(name.lower())
    }
    mechanism = {} if security.login.mechanism in ("PLAIN", OAUTHBEARER) else {MECHANISM: security.login.mechanism}
    told = {
        **tls,
        **mechanism,
        "security.protocol": "SASL_PLAINTEXT" if security.tls is None else "SASL_SSL",
        USERNAME: made.token.token_id,
        PASSWORD: made.password,
        **({PLAIN_WITHOUT_TLS: "true"} if security.login.plain_without_tls else {}),
    }
    return {
        **kept,
        KAFKA_BOOTSTRAP: ",".join(bootstrap.addresses),
        **{f"{KAFKA}{name}": value for name, value in told.items()},
    }


class _Keeper(threading.Thread):
    """Renews a token when half of its time is over. By the time that has passed: the nodes' clocks may differ."""

    def __init__(self, admin: Admin, token: DelegationToken, began: float) -> None:
        super().__init__(name="semel-spark-delegation", daemon=True)
        self._admin = admin
        self._token = token
        self._began = began
        self._expiry_ms = token.expiry_timestamp_ms
        self._ended = threading.Event()

    def run(self) -> None:
        due = self._half_way()
        while not self._ended.wait(max(_WAIT_S_MIN, due - time.monotonic())):
            if self._expiry_ms >= self._token.max_timestamp_ms:
                self._tell("can't be renewed any more: start the query again before its end", None)
                return
            try:
                self._expiry_ms = self._admin.renew_delegation_token(self._token.token_id)
                due = self._half_way()
            except SemelError as error:
                if error.code in _GONE:
                    self._tell("is gone, and the tasks' requests fail", error)
                    return
                self._tell("was not renewed, and is tried again", error)
                due = min(time.monotonic() + _RETRY_S_MAX, self._half_way())

    def stop(self) -> None:
        """Renew no more."""
        self._ended.set()
        self.join()

    def _half_way(self) -> float:
        """Return when half of the time that is left is over."""
        return time.monotonic() + self._left_s() / 2

    def _left_s(self) -> float:
        passed_s = time.monotonic() - self._began
        return (self._expiry_ms - self._token.issue_timestamp_ms) / 1000 - passed_s

    def _tell(self, what: str, error: SemelError | None) -> None:
        why = "" if error is None else f": {error.message}"
        _log.warning(
            "the delegation token %s, which ends in %.0f s, %s%s", self._token.token_id, self._left_s(), what, why
        )
