"""Turns keys and values into what a consumer's deserializers make of them, and says which record they failed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.pipeline.failures import RecordError
from semel.sdk.transport.serde import Deserializer, as_deserializer


class DeserializationError(RecordError):
    """A deserializer failed on a record, whose key and value are in `record` as they are in the log.

    tp, offset: where it is. `consumer.seek(error.tp, error.offset + 1)` leaves it out.
    """

    def __init__(self, record: Record, what: str, why: str) -> None:
        self.tp = TopicPartition(record.topic, record.partition)
        self.offset = record.offset
        super().__init__(
            f"the {what} of {self.tp}@{record.offset} can't be read by the {what}_deserializer: {why}; fix the "
            f"deserializer, or seek to {record.offset + 1} to leave the record out",
            ErrorCode.INVALID_RECORD,
        )
        self.reason = f"the {what}_deserializer raised {why}"
        self.record = record
        self._what = what
        self._why = why

    def __reduce__(self) -> Any:
        return type(self), (self.record, self._what, self._why)


@dataclass(frozen=True, slots=True)
class Deserializers:
    """What is made of keys and of values. None leaves bytes as they are; nothing is called for what is None."""

    key: Deserializer | None
    value: Deserializer | None

    @classmethod
    def checked(cls, key: object, value: object) -> Deserializers | None:
        """Return both, None where there is none. Raises `UsageError`."""
        if key is None and value is None:
            return None
        return cls(as_deserializer("key_deserializer", key), as_deserializer("value_deserializer", value))

    def applied(self, record: Record) -> Record:
        """Return the record with what is made of its key and value. Raises `DeserializationError`."""
        key, value = record.key, record.value
        if self.key is not None and key is not None:
            key = _deserialized(self.key, key, record, "key")
        if self.value is not None and value is not None:
            value = _deserialized(self.value, value, record, "value")
        return Record(record.offset, record.timestamp_ms, key, value, record.headers, record.topic, record.partition)

    def applied_to_all(self, records: list[Record]) -> tuple[DeserializationError | None, list[Record]]:
        """Replace `records` by what is made of them, up to the first that fails.

        Returns its error, and the records from it on, as they were; they are taken from `records`.
        """
        for index, record in enumerate(records):
            try:
                records[index] = self.applied(record)
            except DeserializationError as error:
                rest = records[index:]
                del records[index:]
                return error, rest
        return None, []


def _deserialized(function: Deserializer, data: bytes, record: Record, what: str) -> Any:
    try:
        return function(data)
    except Exception as error:
        raise DeserializationError(record, what, f"{type(error).__name__}: {error}") from error
