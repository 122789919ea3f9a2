"""A log that is open in this process: its node, the way to it, the clients that it gave; from the start to the end."""

from __future__ import annotations

import atexit
import enum
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from semel.broker.node import Listener, Node
from semel.protocol.errors import FatalError, SemelError, UsageError
from semel.protocol.schemes import with_scheme_of
from semel.sdk.embedded.config import embedded_config
from semel.sdk.embedded.hosted_node import HostedNode
from semel.sdk.embedded.link import EmbeddedLink
from semel.sdk.producer.lifetime import close_producers_of
from semel.sdk.transport.in_process import forget, register
from semel.sdk.transport.io_thread import on_any_io_thread

_log = logging.getLogger("semel.embedded")

Client = TypeVar("Client")


class _State(enum.Enum):
    NEW = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


_open: set[EmbeddedCore] = set()
"""All that are open in this process. Also those that nobody refers to: clients that they gave may work on."""


class EmbeddedCore:
    """What the sync and the asyncio API share. Its methods block; they may be called from any thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, object] | None,
        grpc: str | None,
        kafka: str | None,
    ) -> None:
        """Check the arguments; nothing starts before `start`. Raises `ConfigError` and `UsageError`."""
        self.path = _whole_path(path)
        self.link = EmbeddedLink(self.path)
        self._config, self._listeners = embedded_config(self.path, settings, grpc, kafka)
        self._host = HostedNode(
            self._config,
            name="semel-embedded",
            listeners=self._listeners,
            on_started=self._started,
            on_failure=self._failed,
        )
        self._pid = os.getpid()
        self._life = threading.Lock()
        self._state = _State.NEW
        self._clients: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._clients_lock = threading.Lock()
        self._numbers = itertools.count()

    # --- What it is ---------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN

    @property
    def failure(self) -> SemelError | None:
        """Why the node has stopped on its own; None while it runs."""
        return self._host.failure

    def address(self, listener: Listener, option: str) -> str:
        """Return HOST:PORT of a listener. Raises `UsageError` where it was not asked for."""
        self.check()
        if listener not in self._listeners:
            raise UsageError(
                f'{self.path} was opened without ports: semel.open("{self.path}", {option}="127.0.0.1:0") has one'
            )
        node = self._host.node
        if listener is Listener.GRPC:
            return with_scheme_of(node.config.grpc_listen, node.grpc_address)
        return str(node.kafka_address)  # Kafka's clients are told of encryption in other ways

    def check(self) -> None:
        """Raise `UsageError` where it can't be used."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.path} was opened in process {self._pid} and can't be used in its forked child {os.getpid()}: "
                "threads don't survive a fork. Fork first and open then, in one of the two processes"
            )
        if self._state is _State.NEW:
            raise UsageError(
                f"{self.path} is not open yet: semel.open() opens it at once, and what semel.aio.open() returns is to "
                "be awaited, or used in an async with-block"
            )
        if self._state is _State.CLOSED:
            raise UsageError(f'{self.path} was closed: semel.open("{self.path}") opens it again')

    def keep(self, client: Client) -> Client:
        """Remember a client that is to be closed with the log."""
        with self._clients_lock:
            self._clients[next(self._numbers)] = client
        return client

    def clients(self) -> list[Any]:
        """Return the clients that are still there, the newest first."""
        with self._clients_lock:
            return [client for _, client in sorted(self._clients.items(), reverse=True)]

    # --- Life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open it: returns when it can be used. Raises `NodeStartError` and `ConfigError`."""
        with self._life:
            if os.getpid() != self._pid or self._state is _State.CLOSED:
                self.check()
            if self._state is _State.OPEN:
                raise UsageError(f"{self.path} is open already: use it in one with-block")
            try:
                self._host.start()
            except BaseException:
                self._state = _State.CLOSED
                raise
            register(self.link)
            self._state = _State.OPEN
            _open.add(self)

    def may_stop(self) -> bool:
        """Whether there is something to stop. Raises `UsageError` in a callback, which would wait for itself."""
        if os.getpid() != self._pid or self._state is not _State.OPEN:
            return False
        if on_any_io_thread():
            raise UsageError(f"close() of {self.path} was called in a client's callback: call it from another thread")
        return True

    def stop(self) -> None:
        """Stop the node and let the directory go; does nothing the second time. Raises what could not be flushed."""
        with self._life:
            if os.getpid() != self._pid:
                return
            if self._state is not _State.OPEN:
                self._state = _State.CLOSED
                return
            forget(self.link)
            self.link.close(f'{self.path} was closed: semel.open("{self.path}") opens it again')
            # Interrupted in here, it is still open, and can be stopped again.
            error: Exception | None = None
            try:
                self._host.stop()
            except Exception as while_stopping:
                error = while_stopping
            self._state = _State.CLOSED
            _open.discard(self)
        failure = self._host.failure
        if failure is not None:
            raise FatalError(f"{self.path} had stopped, because {failure.message}", failure.code) from error
        if error is not None:
            raise error

    def stop_late(self) -> None:
        """Stop at the end of the program, where nobody has."""
        _log.warning(
            "%s was still open when the program ended, and is closed now: use it in a with-block, or call close()",
            self.path,
        )
        close_producers_of(self.link.name)
        with suppress(SemelError, OSError):  # it is logged
            self.stop()

    # --- On the node's event loop -------------------------------------------------------------------------------------

    def _started(self, node: Node) -> None:
        assert node.in_process is not None
        self.link.attach(node.in_process)

    def _failed(self, error: SemelError) -> None:
        self.link.close(
            f"{self.path} has stopped, because {error.message}. What was acknowledged is kept: close it, fix the "
            "cause, and open it again"
        )


def _whole_path(path: str | os.PathLike[str]) -> str:
    try:
        text = os.path.expanduser(os.fspath(path))
    except TypeError:
        raise UsageError(f'open() takes the path of a directory, such as "data", not {path!r}') from None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f'open() takes the path of a directory, such as "data", not {path!r}')
    return os.path.abspath(text)


def _close_at_exit() -> None:
    for core in list(_open):
        core.stop_late()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_open.clear)
