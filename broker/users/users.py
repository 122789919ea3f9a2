"""The users that a node serves, and whether a password is right.

They are in the node's file, which is read again when it changes, and in the cluster's metadata. Whom the file has is a
user by the file alone: nobody can take over the file's users, or lock them out, through the cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Protocol

from semel.broker.config.listeners import client_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sasl import takes_passwords
from semel.broker.config.tokens import OAUTHBEARER
from semel.broker.users.decoys import Decoys, Shapes, shapes_of
from semel.broker.users.delegation import DelegationTokens, delegation_of
from semel.broker.users.newest import NewestReader
from semel.broker.users.user_file import FileUsers, UserVerifiers, read_users
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.protocol.schemes import asks_for_password
from semel.protocol.scram import Verifier
from semel.runtime.clock import Clock
from semel.runtime.regular_files import FileSignature, signature_of
from semel.runtime.setting import ConfigError
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.users")

_RETRY_S: Final = 5.0
"""How long a file that could not be used is left alone, though nothing of it has changed."""
_CHECKS_MAX: Final = 100
"""Passwords that wait to be checked, each some milliseconds of one thread: strangers may send as many as they like."""
_REMEMBERED_MAX: Final = 10_000
"""Right passwords that are known without another check."""
_NOBODY: Final[UserVerifiers] = MappingProxyType({})


class UsersSource(Protocol):
    """What has the users and the delegation tokens as they are now: an image of the metadata."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def users(self) -> UserVerifiers: ...

    @property
    def delegation_tokens(self) -> Mapping[str, DelegationToken]: ...


class MetadataSource(Protocol):
    """What has the newest image."""

    @property
    def image(self) -> UsersSource: ...

    async def refresh(self) -> UsersSource:
        """Read what other nodes have changed until now. Raises `SemelError`."""
        ...


class Users:
    """Of one node. From any thread, but for what is awaited: on one event loop."""

    def __init__(self, path: str) -> None:
        """`path`: of the file; empty where there is none. Reads it. Raises `ConfigError` where it can't be used."""
        self._path = path
        self.delegation: DelegationTokens | None = None
        self.others: NewestReader | None = None
        """What checks delegation tokens, which users ask for; None where there are none."""
        self._lock = threading.RLock()
        self._refused: FileSignature = ()
        self._refused_at = 0.0
        self._told = ""
        self._decoys = Decoys(os.urandom(32))
        self._remembering = os.urandom(32)
        """Keeps passwords out of `_right`: they can't be guessed from what is there."""
        self._right: OrderedDict[bytes, tuple[str, Verifier]] = OrderedDict()
        self._checks = 0
        self._threads = Threads(1, "semel-passwords")
        self._reader = Threads(1, "semel-users")
        self._reading: Future[None] | None = None
        self._counting: Future[None] | None = None
        self._in_cluster: Callable[[], UserVerifiers] = lambda: _NOBODY
        self._signature = self._signed() if path else ()
        self._file = self._load() if path else FileUsers()
        self._shapes = shapes_of(self._file.verifiers)
        self._shapes_in_cluster: tuple[UserVerifiers, Shapes] = _NOBODY, shapes_of(_NOBODY)
        if path and not self._file.verifiers:
            raise ConfigError(
                f"sasl.users.location = {path} has no users: `semel user add NAME --file {path}` adds one"
            )

    def know_cluster(self, cluster_id: str, users: Callable[[], UserVerifiers]) -> None:
        """Serve the users of the cluster's metadata, too: `users` returns them as they are now, and another mapping
        where they have changed.

        From now on the nodes of a cluster tell the same of users that there are not, also after another start.
        """
        self._in_cluster = users
        self._decoys = Decoys(hashlib.sha256(f"users of {cluster_id}".encode()).digest())

    async def settled(self) -> None:
        """Wait until users that have changed are known here: before a password is proven.

        That is a thread's work: to read a file of many users takes a second (S3).
        """
        for begin in (self._look, self._count):
            work = begin()
            if work is not None:
                await asyncio.wait({asyncio.wrap_future(work)})

    @property
    def has_some(self) -> bool:
        """Whether there are any."""
        return bool(self._file.verifiers or self._in_cluster())

    def has(self, name: str) -> bool:
        """Return whether there is a user of this name, with a password. It begins to read a file that has changed."""
        self._look()
        return bool(self._verifiers(name))

    def had(self, name: str, at_ms: int) -> bool:
        """Return whether there is a user of this name, who was the same one at that time (milliseconds since 1970).

        Of the cluster's metadata that is all it says: who is removed there takes what he owned with him.
        """
        return self.has(name) and self.added_ms(name) <= at_ms

    def added_ms(self, name: str) -> int:
        """Return when a user was added to the node's file, in milliseconds since 1970; 0 where that is not known."""
        return self._file.added_ms.get(name, 0)

    def is_in_file(self, name: str) -> bool:
        """Return whether a user is one by the node's file, so that what the cluster's metadata has does not count."""
        return name in self._file.verifiers

    def verifier(self, name: str, mechanism: str) -> Verifier:
        """Return what proves a user's password; for an unknown user what no password fits, always the same."""
        decoy = self.decoy(name, mechanism)  # also where it is not needed: that takes as long for everybody (S5)
        for one in self._verifiers(name):
            if one.mechanism == mechanism:
                return one
        return decoy

    def is_current(self, name: str, verifier: Verifier) -> bool:
        """Return whether a user is still there, with the password that it proves.

        Where the file has changed, it begins to be read: the next answer is by what is in it.
        """
        self._look()
        return verifier in self._verifiers(name)

    def knows_password(self, name: str, password: str) -> Verifier | None:
        """Return what proves a password that was right before; None where it has to be checked."""
        right = self._right.get(self._digest(name, password))
        return right[1] if right is not None and right[1] in self._verifiers(name) else None

    async def check_password(self, name: str, password: str) -> Verifier | None:
        """Return what proves a password; None where it is wrong, or there is no such user.

        Raises `RetriableError` where too many wait to be checked.
        """
        await self.settled()
        known = self.knows_password(name, password)
        if known is not None:
            return known
        before = self._verifiers(name)
        found = await self._check(name, password)
        if found is None and self.others is not None:
            # Another node may have taken the user or the password a moment ago. All who are refused wait for that, so
            # nobody hears by the time it takes who is a user (S5).
            await self.others.newest()
            if self._verifiers(name) != before:
                found = await self._check(name, password)
        return found

    async def _check(self, name: str, password: str) -> Verifier | None:
        if self._checks >= _CHECKS_MAX:
            raise RetriableError("too many passwords are being checked: try again", ErrorCode.REQUEST_TIMED_OUT)
        decoy = self.decoy(name, None)
        verifier = next(iter(self._verifiers(name)), decoy)
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

    def _verifiers(self, name: str) -> Sequence[Verifier]:
        return self._file.verifiers.get(name) or self._in_cluster().get(name, ())

    def decoy(self, name: str, mechanism: str | None) -> Verifier:
        """Return what an unknown user gets, which looks like what the users have."""
        return self._decoys.verifier(name, mechanism, (self._shapes, self._shapes_in_cluster[1]))

    def _count(self) -> Future[None] | None:
        """Count how the cluster's users look, where they have changed. Returns the work that is under way."""
        with self._lock:
            in_cluster = self._in_cluster()
            if self._counting is None and in_cluster is not self._shapes_in_cluster[0]:
                work = self._reader.submit(self._count_again, in_cluster)
                self._counting = None if work.done() else work
            return self._counting

    def _count_again(self, in_cluster: UserVerifiers) -> None:
        try:
            self._shapes_in_cluster = in_cluster, shapes_of(in_cluster)
        finally:
            with self._lock:
                self._counting = None

    def _look(self) -> Future[None] | None:
        """Look whether the file has changed, and begin to read it then. Returns the reading that is under way."""
        with self._lock:
            if self._reading is not None or not self._path:
                return self._reading
            signature: FileSignature = ()
            try:
                signature = self._signed()
            except ConfigError as error:
                self._refuse(signature, error)
                return None
            if signature == self._signature:
                self._refused, self._told = (), ""
                return None
            if signature == self._refused and time.monotonic() - self._refused_at <= _RETRY_S:
                return None
            # The thread takes the lock before it is done. Where there can be no thread, it is done here and now.
            work = self._reader.submit(self._read_again, signature)
            self._reading = None if work.done() else work
            return self._reading

    def _read_again(self, signature: FileSignature) -> None:
        """Read the file, in a thread."""
        try:
            found = self._load()
            if not found.verifiers:
                raise ConfigError(f"sasl.users.location = {self._path} has no users: it may be written just now")
            shapes = shapes_of(found.verifiers)
            with self._lock:
                before = self._file  # it is let go after the lock: to free many takes long
                self._file, self._shapes, self._signature = found, shapes, signature
            _log.info("the users were read again: there are %d, before %d", len(found.verifiers), len(before.verifiers))
        except ConfigError as error:
            with self._lock:
                self._refuse(signature, error)
        finally:
            with self._lock:
                self._reading = None

    def _refuse(self, signature: FileSignature, error: ConfigError) -> None:
        if error.message != self._told:
            _log.warning("the users stay as they were: %s", error.message)
        self._refused, self._refused_at, self._told = signature, time.monotonic(), error.message

    def _signed(self) -> FileSignature:
        try:
            return signature_of(self._path)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None

    def _load(self) -> FileUsers:
        try:
            return read_users(self._path)
        except UsageError as error:
            raise ConfigError(f"sasl.users.location: {error.message}") from None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None

    def _unusable(self, why: str) -> ConfigError:
        return ConfigError(f"sasl.users.location = {self._path} can't be read: {why}")


async def users_of(config: NodeConfig) -> Users | None:
    """Return the users of a node with a listener that asks for passwords; reads their file. Raises `ConfigError`."""
    listens = (*(each.listen for each in client_listeners(config)), config.metrics_listen)
    asks = any(map(asks_for_password, listens))
    if not asks or not takes_passwords(config):
        return None
    thread = Threads(1, "semel-users")
    users = await asyncio.get_running_loop().run_in_executor(thread, Users, config.sasl_users_location)
    users.delegation = delegation_of(config, users.had)
    return users


def follow_cluster(config: NodeConfig, users: Users | None, metadata: MetadataSource, clock: Clock) -> None:
    """Have a node serve the metadata's users and delegation tokens. Raises `ConfigError` where nobody could get in."""
    if users is None:
        return
    users.know_cluster(metadata.image.cluster_id, lambda: metadata.image.users)

    async def read_newest() -> None:
        with suppress(SemelError):  # what is known stays
            await metadata.refresh()

    users.others = NewestReader(read_newest) if config.peer_listen else None
    if users.delegation is not None:
        users.delegation.know_cluster(lambda: metadata.image.delegation_tokens, clock, users.others)
    check_somebody(config, users)


def check_somebody(config: NodeConfig, users: Users) -> None:
    """Raise `ConfigError` where nobody could get in, not even to add the first user; warn where one has to be added."""
    if users.has_some or OAUTHBEARER in config.sasl_enabled_mechanisms:
        return
    listeners = client_listeners(config)
    asking = [(each.setting, each.listen) for each in listeners if asks_for_password(each.listen)]
    name, listen = (*asking, ("metrics.listen", config.metrics_listen))[0]
    if len(asking) == len(listeners):
        raise ConfigError(
            f"{name} = {listen} needs users, and the cluster's metadata has none: set sasl.users.location to a file "
            "that `semel user add NAME --file FILE` writes"
        )
    _log.warning(
        "%s = %s serves nobody yet: the cluster's metadata has no users. Add the first one at another listener: "
        "`semel user add NAME --bootstrap HOST:PORT`",
        name, listen,
    )  # fmt: skip
