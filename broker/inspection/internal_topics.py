"""What the records of `__transaction_state` and `__consumer_offsets` say: all of Kafka's kinds, and Semel's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.broker.inspection.json_values import bytes_field, plain
from semel.group_coordinator.records import consumer_schemas, schemas
from semel.group_coordinator.records.consumer_schemas import ConsumerGroupKey, ConsumerKeyKind
from semel.protocol.corruption import CorruptDataError
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from semel.txn_coordinator.commit_records import decode_attempt, decode_commit_key, decode_decision
from semel.txn_coordinator.schemas import decode_key, decode_value

_CONSUMER_VALUES: Final[Mapping[ConsumerKeyKind, tuple[str, Callable[[bytes], Any]]]] = {
    ConsumerKeyKind.GROUP: ("consumer-group-epoch", consumer_schemas.decode_epoch),
    ConsumerKeyKind.MEMBER: ("consumer-group-member", consumer_schemas.decode_details),
    ConsumerKeyKind.TARGET: ("consumer-group-target-epoch", consumer_schemas.decode_target_epoch),
    ConsumerKeyKind.TARGET_MEMBER: ("consumer-group-target", consumer_schemas.decode_target),
    ConsumerKeyKind.CURRENT: ("consumer-group-assignment", consumer_schemas.decode_current),
}


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Return {"type", "key", "value"} of a record of an internal topic, None of another topic's. A value of None is a
    tombstone.

    Raises `SemelError` for bytes that do not fit, as a coordinator that loads them does.
    """
    if topic not in INTERNAL_TOPICS:
        return None
    if key is None:
        raise CorruptDataError(f"a record of {topic} has no key")
    if topic == TRANSACTIONS_TOPIC:
        return _transaction_record(key, value)
    assert topic == OFFSETS_TOPIC
    return _group_record(key, value)


def _found(kind: str, key: Any, value: Any) -> dict[str, Any]:
    return {"type": kind, "key": plain(key), "value": None if value is None else plain(value)}


def _transaction_record(key: bytes, value: bytes | None) -> dict[str, Any]:
    transactional_id = decode_key(key)
    if transactional_id is not None:
        state = None if value is None else decode_value(transactional_id, value)
        return _found("transaction", {"transactional_id": transactional_id}, state)
    commit = decode_commit_key(key)
    if commit is None:
        return _unknown(int.from_bytes(key[:2], "big", signed=True), key, value)
    if commit.token is None:
        return _found("shared-attempt", commit, None if value is None else decode_attempt(commit.key, value))
    return _found(
        "commit-decision", commit, None if value is None else decode_decision(commit.key, commit.token, value)
    )


def _group_record(key: bytes, value: bytes | None) -> dict[str, Any]:
    found = schemas.decode_key(key)
    match found:
        case schemas.OffsetCommitKey():
            return _found("offset-commit", found, None if value is None else schemas.decode_offset_value(value))
        case schemas.GroupMetadataKey():
            return _found("group", found, None if value is None else schemas.decode_group_value(value))
        case ConsumerGroupKey():
            name, decode_consumer = _CONSUMER_VALUES[found.kind]
            return _found(name, found, None if value is None else decode_consumer(value))
        case schemas.UnknownKey():
            return _unknown(found.version, key, value)


def _unknown(version: int, key: bytes, value: bytes | None) -> dict[str, Any]:
    """Of a kind that this version steps over, as Kafka does."""
    return {
        "type": "unknown",
        "key": {"version": version, **bytes_field("bytes", key)},
        "value": None if value is None else bytes_field("bytes", value),
    }
