"""Bytes of consumer groups in `__consumer_offsets`: fixed ones from Kafka's message definitions, and round trips."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.group_coordinator.records.consumer_schemas import (
    ConsumerGroupKey,
    ConsumerKeyKind,
    GroupEpochValue,
    current_record,
    decode_current,
    decode_details,
    decode_epoch,
    decode_target,
    decode_target_epoch,
    encode_consumer_key,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from semel.group_coordinator.records.consumer_state import ClassicMetadata, MemberAssignment, MemberDetails, MemberState
from semel.group_coordinator.records.schemas import decode_key
from semel.protocol.api.consumer_groups import Partitions, TopicIdPartition
from semel.protocol.api.groups import GroupProtocol
from semel.protocol.corruption import CorruptDataError
from semel.protocol.ids import TopicId

TOPIC = TopicId(UUID(bytes=bytes(range(16))))
SOME: Partitions = frozenset({TopicIdPartition(TOPIC, 1), TopicIdPartition(TOPIC, 0)})
SOME_BYTES = b"\x02" + bytes(range(16)) + b"\x03" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01" + b"\x00"


def test_keys_are_kafkas_bytes() -> None:
    assert encode_consumer_key(ConsumerGroupKey(ConsumerKeyKind.GROUP, "g")) == b"\x00\x03\x00\x01g"
    assert encode_consumer_key(ConsumerGroupKey(ConsumerKeyKind.TARGET, "g")) == b"\x00\x06\x00\x01g"
    for number, kind in ((5, ConsumerKeyKind.MEMBER), (7, ConsumerKeyKind.TARGET_MEMBER), (8, ConsumerKeyKind.CURRENT)):
        key = ConsumerGroupKey(kind, "g", "m1")
        assert encode_consumer_key(key) == bytes((0, number)) + b"\x00\x01g\x00\x02m1"
        assert decode_key(encode_consumer_key(key)) == key


def test_values_are_kafkas_bytes() -> None:
    assert epoch_record("g", GroupEpochValue(7)).value == b"\x00\x00" + b"\x00\x00\x00\x07" + b"\x00"
    hashed = b"\x00\x00" + b"\x00\x00\x00\x07" + b"\x01\x00\x08" + b"\xff" * 8
    assert epoch_record("g", GroupEpochValue(7, -1)).value == hashed
    assert target_epoch_record("g", 7).value == b"\x00\x00" + b"\x00\x00\x00\x07" + b"\x00"
    assert target_record("g", "m", SOME).value == b"\x00\x00" + SOME_BYTES + b"\x00"
    current = MemberAssignment(3, 2, MemberState.UNREVOKED_PARTITIONS, SOME, frozenset())
    numbers = b"\x00\x00\x00\x03\x00\x00\x00\x02\x01"
    assert current_record("g", "m", current).value == b"\x00\x00" + numbers + SOME_BYTES + b"\x01" + b"\x00"
    details = MemberDetails("i", None, "c", "/h", ("t",), None, 5, "range", ClassicMetadata(6, ()))
    assert member_record("g", "m", details).value == (
        b"\x00\x00\x02i\x00\x02c\x03/h\x02\x02t\x00\x00\x00\x00\x05\x06range\x01\x00\x07\x01\x00\x00\x00\x06\x01\x00"
    )


def test_deletions_have_no_value() -> None:
    for record in (
        epoch_record("g", None),
        target_epoch_record("g", None),
        member_record("g", "m", None),
        target_record("g", "m", None),
        current_record("g", "m", None),
    ):
        assert record.value is None


_partitions = st.frozensets(st.builds(TopicIdPartition, st.uuids().map(TopicId), st.integers(0, 2**31 - 1)), max_size=5)
_text = st.text(max_size=5)
_int32 = st.integers(-(2**31), 2**31 - 1)
_classic = st.builds(
    ClassicMetadata, _int32, st.lists(st.builds(GroupProtocol, _text, st.binary(max_size=5)), max_size=3).map(tuple)
)
_details = st.builds(
    MemberDetails,
    st.none() | _text,
    st.none() | _text,
    _text,
    _text,
    st.lists(_text, max_size=3).map(tuple),
    st.none() | _text,
    _int32,
    st.none() | _text,
    st.none() | _classic,
)


@given(_partitions, _partitions, _int32, st.sampled_from(MemberState), _details, st.integers(-(2**63), 2**63 - 1))
def test_values_come_back(
    assigned: Partitions, to_revoke: Partitions, epoch: int, state: MemberState, details: MemberDetails, number: int
) -> None:
    current = MemberAssignment(epoch, epoch, state, assigned, to_revoke)
    assert decode_current(current_record("g", "m", current).value or b"") == current
    assert decode_target(target_record("g", "m", assigned).value or b"") == assigned
    assert decode_details(member_record("g", "m", details).value or b"") == details
    assert decode_target_epoch(target_epoch_record("g", epoch).value or b"") == epoch
    assert decode_epoch(epoch_record("g", GroupEpochValue(epoch, number)).value or b"") == GroupEpochValue(
        epoch, number
    )


def test_states_and_fields_of_newer_versions() -> None:
    newer = b"\x00\x00" + b"\x00\x00\x00\x03\x00\x00\x00\x02\x55" + b"\x01\x01" + b"\x01\x05\x01x"
    assert decode_current(newer) == MemberAssignment(3, 2, MemberState.UNKNOWN)
    with pytest.raises(CorruptDataError, match="newer node"):
        decode_epoch(b"\x00\x01\x00\x00\x00\x07\x00")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_current, decode_details, decode_epoch, decode_target, decode_target_epoch):
        try:
            decode(b"\x00\x00" + data)
        except CorruptDataError:
            continue
