"""What a handler gets and returns, and what a run reads from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.producer.serialization import HeadersArgument
from semel.sdk.producer.transaction import CommitSource


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send, as a handler of `Consumer.run` returns it. See `Producer.send` for what each is.

    >>> ProducerRecord("enriched", b"cheap", key=b"order-7")
    ProducerRecord(topic='enriched', value=b'cheap', key=b'order-7', headers=None, partition=None, timestamp_ms=None)
    """

    topic: str
    value: Any = None
    key: Any = None
    headers: HeadersArgument | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


Outputs: TypeAlias = ProducerRecord | Iterable[ProducerRecord] | None
Handler: TypeAlias = Callable[[Record], Outputs]
AsyncHandler: TypeAlias = Callable[[Record], Outputs | Awaitable[Outputs]]


class Polled(CommitSource, Protocol):
    """What a poll returned."""

    @property
    def records(self) -> list[Record]: ...

    def continue_at_committed(self) -> None:
        """Whether the group has committed these records is not known: continue where it stands."""
        ...

    def truncate(self, offsets: Mapping[TopicPartition, int]) -> None:
        """End before `offsets`; later polls return the rest."""
        ...

    def processing(self, record: Record | None = None) -> AbstractContextManager[None]:
        """Return a context manager inside of which a record is processed, for its trace."""
        ...


Poll: TypeAlias = Callable[[float, int], Polled | None]
AsyncPoll: TypeAlias = Callable[[float, int], Awaitable[Polled | None]]


class Source(Protocol):
    """What of a consumer a run uses besides its polls."""

    def assignment(self) -> frozenset[TopicPartition]: ...

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None: ...

    def lag(self) -> dict[TopicPartition, int]: ...

    def position(self, partition: TopicPartition) -> int | None: ...


def collected(result: Any) -> list[Any]:
    """Return what a handler returned as a list. A generator runs here, and may raise what the handler raises."""
    if result is None:
        return []
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes, bytearray, memoryview, Mapping)):
        return list(result)
    return [result]


def check_outputs(outputs: list[Any]) -> list[ProducerRecord]:
    """Return what is to be sent. Raises `UsageError` for anything but records to send."""
    for output in outputs:
        if not isinstance(output, ProducerRecord):
            raise UsageError(
                "a handler returns a semel.ProducerRecord(topic, value, key=...), several in a list, or None to send "
                f"nothing; not {type(output).__name__} {output!r}"[:500]
            )
    return outputs
