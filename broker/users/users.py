"""The users that a node serves, by its file, which is read again when it changes; and whether a password is right."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sasl import SCRAM_MECHANISMS, takes_passwords
from semel.broker.users.user_file import UserVerifiers, read_users
from semel.broker.users.verifiers import ITERATIONS, Verifier
from semel.protocol.errors import ErrorCode, RetriableError, UsageError
from semel.protocol.schemes import asks_for_password
from semel.runtime.setting import ConfigError
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.users")

_RETRY_S: Final = 5.0
"""How long a file that could not be used is left alone, though nothing of it has changed."""
_CHECKS_MAX: Final = 100
"""Passwords that wait to be checked, each some milliseconds of one thread: strangers may send as many as they like."""
_REMEMBERED_MAX: Final = 10_000
"""Right passwords that are known without another check."""
_SALT_BYTES: Final = 32


class Users:
    """Of one node. From any thread, but for `check_password`."""

    def __init__(self, path: str) -> None:
        """Raises `ConfigError` where the file can't be used."""
        self._path = path
        self._lock = threading.Lock()
        self._refused: tuple[int, ...] = ()
        self._refused_at = 0.0
        self._told = ""
        self._secret = os.urandom(32)
        """Makes what strangers are told of users that there are not look like what they are told of the others."""
        self._remembering = os.urandom(32)
        """Keeps passwords out of `_right`: they can't be guessed from what is there."""
        self._right: OrderedDict[bytes, tuple[str, Verifier]] = OrderedDict()
        self._checks = 0
        self._threads = Threads(1, "semel-passwords")
        self._signature = self._signed()
        self._users: UserVerifiers = self._load()
        if not self._users:
            raise ConfigError(
                f"sasl.users.location = {path} has no users: `semel user add NAME --file {path}` adds one"
            )

    def know_cluster(self, cluster_id: str) -> None:
        """Let the nodes of a cluster tell the same of users that there are not, also after another start."""
        self._secret = hashlib.sha256(f"users of {cluster_id}".encode()).digest()

    def verifier(self, name: str, mechanism: str) -> Verifier:
        """Return what proves a user's password; for an unknown user what no password fits, always the same."""
        for one in self._current().get(name, ()):
            if one.mechanism == mechanism:
                return one
        return self._nobody(name, mechanism)

    def is_current(self, name: str, verifier: Verifier) -> bool:
        """Return whether a user is still there, with the password that it proves."""
        return verifier in self._current().get(name, ())

    def knows_password(self, name: str, password: str) -> Verifier | None:
        """Return what proves a password that was right before; None where it has to be checked."""
        right = self._right.get(self._digest(name, password))
        return right[1] if right is not None and self.is_current(name, right[1]) else None

    async def check_password(self, name: str, password: str) -> Verifier | None:
        """Return what proves a password; None where it is wrong, or there is no such user.

        Raises `RetriableError` where too many wait to be checked.
        """
        known = self.knows_password(name, password)
        if known is not None:
            return known
        if self._checks >= _CHECKS_MAX:
            raise RetriableError("too many passwords are being checked: try again", ErrorCode.REQUEST_TIMED_OUT)
        verifiers = self._current().get(name)
        verifier = verifiers[0] if verifiers else self._nobody(name, SCRAM_MECHANISMS[0])
        self._checks += 1
        try:
            is_right = await asyncio.get_running_loop().run_in_executor(self._threads, verifier.accepts, password)
        finally:
            self._checks -= 1
        if not is_right or not self.is_current(name, verifier):
            return None
        self._right[self._digest(name, password)] = name, verifier
        if len(self._right) > _REMEMBERED_MAX:
            self._right.popitem(last=False)
        return verifier

    def _digest(self, name: str, password: str) -> bytes:
        told = f"{len(name)} {name} {password}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._remembering, told, "sha256")

    def _nobody(self, name: str, mechanism: str) -> Verifier:
        size = hashlib.new(mechanism.removeprefix("SCRAM-").replace("-", "")).digest_size
        told = f"{mechanism} {name}".encode("utf-8", "surrogatepass")
        salt = hmac.digest(self._secret, told, "sha256")[:_SALT_BYTES]
        return Verifier(mechanism, ITERATIONS, salt, os.urandom(size), os.urandom(size))

    def _current(self) -> UserVerifiers:
        with self._lock:
            signature: tuple[int, ...] = ()
            try:
                signature = self._signed()
                if signature == self._signature:
                    self._refused, self._told = (), ""
                elif signature != self._refused or time.monotonic() - self._refused_at > _RETRY_S:
                    before, found = self._users, self._load()
                    if before and not found:
                        raise ConfigError(
                            f"sasl.users.location = {self._path} has no users: it may be written just now"
                        )
                    self._users, self._signature = found, signature
                    _log.info("the users were read again: there are %d, before %d", len(self._users), len(before))
            except ConfigError as error:
                if error.message != self._told:
                    _log.warning("the users stay as they were: %s", error.message)
                self._refused, self._refused_at, self._told = signature, time.monotonic(), error.message
            return self._users

    def _signed(self) -> tuple[int, ...]:
        try:
            state = os.stat(self._path)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        if not stat.S_ISREG(state.st_mode):  # to open a pipe would wait for who writes into it
            raise self._unusable("it is no file")
        return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns

    def _load(self) -> UserVerifiers:
        try:
            return read_users(self._path)
        except UsageError as error:
            raise ConfigError(f"sasl.users.location: {error.message}") from None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None

    def _unusable(self, why: str) -> ConfigError:
        return ConfigError(f"sasl.users.location = {self._path} can't be read: {why}")


def users_of(config: NodeConfig) -> Users | None:
    """Return the users of a node with a listener that asks for passwords. Raises `ConfigError`."""
    asks = asks_for_password(config.kafka_listen) or asks_for_password(config.grpc_listen)
    if asks and takes_passwords(config):
        return Users(config.sasl_users_location)
    return None
