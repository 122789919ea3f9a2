"""Deserializers of a consumer: what they make, whom they are asked for, and what becomes of a record they fail on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from consumer_kit import Kit

import semel
from semel.protocol.errors import UsageError
from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(params=["sync", "aio"])
def kit(request: pytest.FixtureRequest, node: Broker) -> Iterator[Kit]:
    kit = Kit(node, request.param)
    yield kit
    kit.close()


def poll(consumer: Any, max_records: int = 100) -> list[Any]:
    """Poll until something comes."""
    while True:
        batch = consumer.poll(1.0, max_records)
        if batch is not None:
            return [record.value for record in batch]


def test_keys_and_values_are_what_the_deserializers_make_of_them(kit: Kit) -> None:
    kit.create()
    with semel.Producer(kit.node.bootstrap, key_serializer="text", value_serializer="json") as producer:
        producer.send(kit.topic, {"id": 7, "name": "Å"}, key="k")
        producer.send(kit.topic, None, key="k")
    consumer = kit.member(key_deserializer=bytes.decode, value_deserializer="json")
    (first, second) = consumer.poll(60.0)
    assert (first.key, first.value) == ("k", {"id": 7, "name": "Å"})
    assert (second.key, second.value) == ("k", None), "nothing is called for a record without a value"
    assert (first.offset, first.topic, first.partition) == (0, kit.topic, 0)


def test_iterating_gives_what_the_deserializers_make(kit: Kit) -> None:
    kit.create()
    kit.fill("1", "2")
    reader = iter(kit.member(value_deserializer="json"))
    assert [next(reader).value, next(reader).value] == [1, 2]


def test_a_record_that_fails_is_met_by_each_poll_until_one_seeks_past_it(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("1", "2", "not json", "4")
    consumer = kit.member(value_deserializer="json")
    assert poll(consumer) == [1, 2]
    for _ in range(2):
        with pytest.raises(semel.DeserializationError, match=f"the value of {tp}@2 can't be read") as caught:
            poll(consumer)
    assert (caught.value.tp, caught.value.offset, caught.value.record.value) == (tp, 2, b"not json")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert consumer.position(tp) == 2
    consumer.seek(tp, 3)
    assert poll(consumer) == [4]


def test_what_is_committed_ends_before_a_record_that_fails(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("1", "not json", "3")
    consumer = kit.member(value_deserializer="json")
    assert poll(consumer) == [1]
    with pytest.raises(semel.DeserializationError):
        poll(consumer)
    consumer.commit()
    assert consumer.committed()[tp].offset == 1


@pytest.mark.parametrize("option", ["key_deserializer", "value_deserializer"])
def test_a_deserializer_is_a_function_or_a_name(kit: Kit, option: str) -> None:
    with pytest.raises(UsageError, match=f'option {option} must be a function, "json" or "text", not'):
        kit.member(**{option: "yaml"})


@pytest.mark.parametrize("option", ["key_serializer", "value_serializer"])
def test_a_serializer_is_a_function_or_a_name(node: Broker, option: str) -> None:
    with pytest.raises(UsageError, match=f'option {option} must be a function, "json" or "text", not 7'):
        semel.Producer(node.bootstrap, **{option: 7})


def test_equal_keys_in_json_are_equal_bytes(kit: Kit) -> None:
    kit.create()
    with semel.Producer(kit.node.bootstrap, key_serializer="json") as producer:
        producer.send(kit.topic, b"1", key={"a": 1, "b": 2})
        producer.send(kit.topic, b"2", key={"b": 2, "a": 1})
    batch = kit.member().poll(60.0)
    assert [record.key for record in batch] == [b'{"a":1,"b":2}'] * 2


def test_what_is_no_json_is_refused_when_it_is_sent(node: Broker) -> None:
    with (
        semel.Producer(node.bootstrap, value_serializer="json") as producer,
        pytest.raises(UsageError, match="the value_serializer failed on a value"),
    ):
        producer.send("any", float("nan"))


# --- Ending a batch early ---------------------------------------------------------------------------------------------


def test_a_batch_that_ends_early_commits_up_to_there_and_the_rest_is_returned_again(kit: Kit) -> None:
    first, second = kit.create(2)
    kit.fill("a", "b", "c")
    kit.fill("x", "y", partition=1)
    consumer = kit.member()
    batch = consumer.poll(60.0)
    while len(batch) < 5:  # both partitions in one batch
        batch.rewind()
        batch = consumer.poll(60.0)
    batch.truncate({first: 1, second: 0})
    assert [record.value for record in batch] == [b"a"]
    assert batch.next_offsets == {first: semel.OffsetAndMetadata(1)}
    rest: list[Any] = []
    while len(rest) < 4:
        rest += poll(consumer)
    assert sorted(rest) == [b"b", b"c", b"x", b"y"]


def test_a_batch_that_ends_early_can_be_rewound_as_a_whole(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("a", "b", "c")
    consumer = kit.member()
    batch = consumer.poll(60.0)
    batch.truncate({tp: 2})
    batch.rewind()
    assert poll(consumer) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("offset", [4, 100])
def test_a_batch_ends_at_an_offset_that_it_has(kit: Kit, offset: int) -> None:
    (tp,) = kit.create()
    kit.fill("a", "b", "c")
    batch = kit.member().poll(60.0)
    with pytest.raises(UsageError, match=rf"a batch can't end at {tp}@{offset}: it has offsets 0 to 2"):
        batch.truncate({tp: offset})
    with pytest.raises(UsageError, match="it has no records of it"):
        batch.truncate({semel.TopicPartition("other", 0): 0})
    assert len(batch) == 3


def test_a_batch_that_was_rewound_or_returned_again_can_not_end_early(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("a", "b", "c")
    consumer = kit.member()
    first = consumer.poll(60.0)
    first.rewind()
    with pytest.raises(UsageError, match="was rewound"):
        first.truncate({tp: 1})
    again = consumer.poll(60.0)
    with pytest.raises(UsageError, match="was rewound"):
        first.truncate({tp: 1})
    assert [record.value for record in again] == [b"a", b"b", b"c"]
    assert consumer.position(tp) == 3
