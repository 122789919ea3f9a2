"""Control records: the markers that end a producer's transaction on a partition.

Key: version int16, type int16. Value: version int16, coordinator epoch int32 (Kafka's EndTransactionMarker).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.protocol.batch_builder import encode_batch
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.ids import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from semel.protocol.record_decoder import Record


class ControlType(IntEnum):
    """What a control record says about its producer's transaction."""

    ABORT = 0
    COMMIT = 1


class EndTxnMarker(NamedTuple):
    """The content of a transaction marker."""

    type: ControlType
    coordinator_epoch: int


_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")


def encode_control_batch(
    marker: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Return the batch of one control record that ends a producer's transaction on a partition."""
    record = (timestamp_ms, _CONTROL_KEY.pack(0, marker), _CONTROL_VALUE.pack(0, coordinator_epoch), ())
    return encode_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        leader_epoch=leader_epoch,
        control=True,
    )


def decode_control(record: Record) -> EndTxnMarker:
    """Return what a record of a control batch says.

    Raises `CorruptBatchError` if it is no transaction marker. Versions above 0 may append fields, which are not read.
    """
    key, value = record.key, record.value
    if key is None or len(key) < _CONTROL_KEY.size or value is None or len(value) < _CONTROL_VALUE.size:
        raise CorruptBatchError(f"the control record at offset {record.offset} is too short: {key!r}, {value!r}")
    key_version, kind = _CONTROL_KEY.unpack_from(key)
    value_version, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    if key_version < 0 or value_version < 0 or kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptBatchError(
            f"the control record at offset {record.offset} is no transaction marker: type {kind}, "
            f"versions {key_version} and {value_version}"
        )
    return EndTxnMarker(ControlType(kind), coordinator_epoch)
