# Generated from aio.py beside it by `make sync-api`. Do not edit: change aio.py, and run that again.
"""A log in the caller's own process: a durable node without a port, and its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from semel.broker.node import Listener
from semel.protocol.api.topics import TopicDescription
from semel.protocol.errors import SemelError, UsageError
from semel.sdk.admin.api import Admin
from semel.sdk.arrow.scan import Moment, Scan, scan
from semel.sdk.consumer.api import Consumer
from semel.sdk.embedded.core import EmbeddedCore
from semel.sdk.embedded.made_like import takes_options_of
from semel.sdk.embedded.opening import Opening
from semel.sdk.producer.api import Producer
from semel.sdk.shared.api import SharedTransaction
from semel.sdk.sql.api import Outbox, Sink
from semel.sdk.transport.blocking import work
from semel.sdk.transport.options import NotPicklable, checked_names


class EmbeddedLog(Opening, NotPicklable):
    """A log that is open in this process, made by `semel.open`. May be used by several threads or tasks.

        with semel.open("data") as log:
            log.create_topic("orders", partitions=2)
            with log.producer(transactional_id="load-1") as producer:
                with producer.transaction():
                    producer.send("orders", b"...")

    Its clients are those of every other node, with the same options but the address. Closing it closes those of them
    that are open, the newest first: producers bring out what was sent, and abort what they have open.
    """

    _in_place_of_pickling = "it is a node of this process; another one may open the directory when it is closed here"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, object] | None = None,
        grpc: str | None = None,
        kafka: str | None = None,
    ) -> None:
        """`semel.open` makes it, and says what the arguments are."""
        self._core = EmbeddedCore(path, settings, grpc, kafka)
        self._own_admin: Admin | None = None

    # --- What it is ---------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The directory, as an absolute path."""
        return self._core.path

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for Semel's clients in other processes (gRPC). Raises `UsageError` where no port was asked for."""
        return self._core.address(Listener.GRPC, "grpc")

    @property
    def kafka(self) -> str:
        """HOST:PORT for Kafka's clients, their `bootstrap.servers`. Raises `UsageError` where no port was asked for."""
        return self._core.address(Listener.KAFKA, "kafka")

    @property
    def failure(self) -> SemelError | None:
        """Why it can't continue, its disk having failed; None while it can. Its clients' calls fail from then on."""
        return self._core.failure

    def __repr__(self) -> str:
        return f"<EmbeddedLog {self.path!r}, {'open' if self._core.is_open else 'not open'}>"

    # --- Topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create a topic and return it, as `Admin.create_topic` does. -1 takes the node's num.partitions.

        Raises `FatalError` TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG ...
        """
        return self._admin().create_topic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=validate_only,
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its records."""
        self._admin().delete_topic(name)

    def topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """Return all topics."""
        return self._admin().topics(include_internal=include_internal)

    # --- Clients ------------------------------------------------------------------------------------------------------

    @takes_options_of(Producer)
    def producer(self, **options: Any) -> Producer:
        """Return a `Producer` of this log. Options as there."""
        return self._core.keep(Producer(self._name(), **options))

    @takes_options_of(Consumer)
    def consumer(self, **options: Any) -> Consumer:
        """Return a `Consumer` of this log. Options as there."""
        return self._core.keep(Consumer(self._name(), **options))

    @takes_options_of(Admin)
    def admin(self, **options: Any) -> Admin:
        """Return an `Admin` of this log, for all that is not here: settings, groups, transactions. Options as there."""
        return self._core.keep(Admin(self._name(), **options))

    def shared_transaction(
        self,
        key: str,
        *,
        token: str,
        sequence: int | None = None,
        timeout_ms: int = 300_000,
        attempt: str | None = None,
        **options: Any,
    ) -> SharedTransaction:
        """Begin an attempt at a transaction that several producers of this process share: `SharedTransaction.open`."""
        return SharedTransaction.open(
            self._name(), key, token=token, sequence=sequence, timeout_ms=timeout_ms, attempt=attempt, **options
        )

    @takes_options_of(Sink)
    def sink(self, *args: Any, **options: Any) -> Sink:
        """Return a `Sink` that writes topics of this log into a database. Options as there."""
        return self._core.keep(Sink(self._name(), *args, **options))

    @takes_options_of(Outbox)
    def outbox(self, *args: Any, **options: Any) -> Outbox:
        """Return an `Outbox` that relays a table into topics of this log. Options as there."""
        return self._core.keep(Outbox(self._name(), *args, **options))

    def scan(self, topic: str, start: Moment = "earliest", end: Moment = "latest", **options: Any) -> Scan:
        """Settle what to read of a topic as Arrow columns, as `semel.arrow.scan` does, with its options."""
        if "bootstrap" in options:
            raise UsageError("scan() takes no bootstrap: it reads the log that is open")
        name = self._name()
        return work(lambda: scan(topic, start, end, bootstrap=name, **options))

    # --- Life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close its clients, bring everything to the disk, and let the directory go.

        Does nothing the second time, and in a forked child. Raises the first error of a client that could not bring out
        what was sent, and what the node could not bring to the disk.
        """
        self._close(None, None, None)

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._core.may_stop():
            return
        failure: SemelError | None = None
        try:
            for client in self._core.clients():
                try:
                    client.__exit__(kind, error, trace)
                except SemelError as while_closing:
                    failure = failure or while_closing
        finally:
            work(self._core.stop)
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        self._entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close(kind, error, trace)
        except SemelError as while_closing:
            if error is None:
                raise
            error.add_note(f"and closing {self.path} failed: {while_closing}")

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        self._core.check()
        return self._core.link.name

    def _admin(self) -> Admin:
        """Return the client that asks about topics: one, made when it is first needed."""
        name = self._name()
        if self._own_admin is None:
            self._own_admin = self._core.keep(Admin(name))
        return self._own_admin


@checked_names
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, object] | None = None,
    grpc: str | None = None,
    kafka: str | None = None,
) -> EmbeddedLog:
    """Open a log that is kept in a directory, in this process: the node that `semel serve` is, without the server.

    path:     the directory; made where there is none. One process at a time has it, this way or as `semel serve`
    settings: of the node, by the names of docs/configuration.md: {"log.retention.ms": 86_400_000}
    grpc:     HOST:PORT to listen on for Semel's clients and commands in other processes; port 0: any free. Records
              travel over Kafka's protocol, so it opens a port for that as well, any free one where `kafka` says none
    kafka:    HOST:PORT to listen on for Kafka's clients

    No port is open unless it is asked for, SEMEL_... variables are not looked at, and what the node has to say goes
    to the logger `semel`. Acknowledged is what is on the disk, as with `semel serve` (D1).
    Raises `ConfigError` for a setting that there isn't, `UsageError` for other arguments, and `NodeStartError`, a
    `FatalError`, where the directory can't be had: it says who has it.
    """
    return EmbeddedLog(path, settings=settings, grpc=grpc, kafka=kafka)._begun()
