"""Scenarios about records: producing, fetching, offsets, epochs, deleting."""

from __future__ import annotations

from typing import Any

from same_answers import Side, batch, scenario

from semel.protocol.compression import Compression
from semel.protocol.kafka.api import ApiKey

ABSENT_ID = b"\x01" * 16
INT32_MAX = 2**31 - 1


async def producer_id(at: Side) -> int:
    """Return a producer id of the broker's making, for a producer without transactions."""
    key = ApiKey.INIT_PRODUCER_ID
    answer = await at.ask(
        "a producer id", key, transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    return int(answer.producer_id)


@scenario(ApiKey.PRODUCE)
async def produce(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    odd = await at.topic("odd")
    log_append = await at.topic("appended", message_timestamp_type="LogAppendTime")
    small = await at.topic("small", max_message_bytes="200")
    compacted = await at.topic("compacted", cleanup_policy="compact")
    limited = await at.topic("limited", message_timestamp_before_max_ms="1000")
    good = batch(b"a", b"b", b"c")

    await at.produce("three records", topic, good)
    await at.produce("again", topic, good)
    for acks in (1, 0x7FFF, 2, -2):
        await at.produce(f"acks {acks}", topic, good, acks=acks)
    await at.produce("absent partition", topic, good, partition=7)
    await at.produce("negative partition", topic, good, partition=-1)
    await at.produce("no records", topic, b"")
    # Not null records: Apache Kafka 4.3 never answers them.
    await at.produce("two batches", topic, good + good)
    await at.produce("garbage", topic, b"x" * 100)
    await at.produce("too short", topic, good[:40])
    await at.produce("cut off", topic, good[:-3])
    await at.produce("bytes behind", odd, good + b"xxxxx")
    await at.produce("bad checksum", topic, good[:-1] + bytes([good[-1] ^ 1]))
    old = bytearray(good)
    old[16] = 1
    await at.produce("magic 1", topic, bytes(old))
    old[16] = 3
    await at.produce("magic 3", topic, bytes(old))
    await at.produce("control batch", topic, batch(b"\0\0\0\0", producer=(1, 0), control=True))
    await at.produce("too large", small, batch(b"x" * 500))
    await at.produce("not too large", small, batch(b"x" * 50))
    await at.produce("no key, compacted", compacted, batch(b"a", keys=False))
    await at.produce("key, compacted", compacted, batch(b"a"))
    await at.produce("log append time", log_append, good)
    await at.produce("too old", limited, good)
    await at.produce("no timestamps", topic, batch(b"a", at_ms=-1))
    await at.produce("far future", odd, batch(b"a", at_ms=4_102_444_800_000))
    for codec in Compression:
        await at.produce(f"compressed {codec.name}", topic, batch(b"a", b"b" * 100, compression=codec))
    await at.produce("a transactional id alone", topic, good, transactional_id="nobody")
    await at.produce("internal topic", "__consumer_offsets", good) if version < 13 else None
    named: list[dict[str, Any]]
    if version < 13:
        named = [
            {"name": at.name("absent"), "partition_data": [{"index": 0, "records": good}]},
            {"name": topic, "partition_data": [{"index": 1, "records": good}]},
        ]
        bad = [{"name": "a/b", "partition_data": [{"index": 0, "records": good}]}]
        await at.ask("bad name", ApiKey.PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=bad)
    else:
        topic_id = await at.topic_id(topic)
        named = [
            {"topic_id": ABSENT_ID, "partition_data": [{"index": 0, "records": good}]},
            {"topic_id": topic_id, "partition_data": [{"index": 1, "records": good}]},
        ]
        zero = [{"topic_id": bytes(16), "partition_data": [{"index": 0, "records": good}]}]
        await at.ask("zero id", ApiKey.PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=zero)
    await at.ask("good and absent", ApiKey.PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=named)
    await at.ask("no topics", ApiKey.PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=[])


@scenario(ApiKey.PRODUCE)
async def idempotent_produce(at: Side, version: int) -> None:
    """P1 to P4, P6 of what both must answer."""
    topic = await at.topic("one")
    pid = await producer_id(at)

    async def send(what: str, sequence: int, *values: bytes, epoch: int = 0, number: int = pid, times: int = 1) -> None:
        data = batch(*(values or (b"a",)), producer=(number, epoch), sequence=sequence)
        await at.produce(what, topic, data * times)

    await send("P3: starts anywhere", 5)
    await send("next", 6, b"b", b"c")
    await send("P1: duplicate", 6, b"b", b"c")
    await send("P1: older duplicate", 5)
    await send("P2: gap", 9)
    await send("P2: back", 7)
    await send("P2: longer than what was", 6, b"b", b"c", b"d")
    await send("P2: zero again", 0)
    for n in range(8, 14):
        await send(f"sequence {n}", n)
    await send("P1: the fifth last", 9)
    await send("P1: the sixth last", 8)
    await send("P4: lower epoch", 14, epoch=-1)
    await send("P3: higher epoch, not zero", 14, epoch=1)
    await send("P3: higher epoch", 0, epoch=1)
    await send("P4: the old epoch", 14)
    await send("P4: the old epoch, duplicate", 13)
    await send("no sequence", -1, epoch=1)
    await send("two batches", 1, epoch=1, times=2)
    other = await producer_id(at)
    await send("P2: near the end", INT32_MAX - 1, number=other)
    await send("P2: wraps within", INT32_MAX, b"a", b"b", number=other)
    await send("P2: after it", 1, number=other)
    await send("P1: wrapped duplicate", INT32_MAX, b"a", b"b", number=other)
    await send("never given out", 0, number=987_654)
    transactional = batch(b"a", producer=(pid, 1), sequence=2, transactional=True)
    await at.produce("transactional without a name", topic, transactional)
    await at.produce("transactional, of nobody", topic, transactional, transactional_id=at.name("nobody"))
    await at.ask("producers", ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": [0]}])


@scenario(ApiKey.FETCH)
async def fetch(at: Side, version: int) -> None:
    topic, other = await at.topic("one", 2), await at.topic("two")
    topic_id, other_id = await at.topic_id(topic), await at.topic_id(other)
    for n in range(3):
        await at.produce(f"data {n}", topic, batch(b"a%d" % n, b"b" * 50))

    def wanted(offset: int, partition: int = 0, *, name: str = topic, id_: bytes = topic_id, **more: Any) -> Any:
        values = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1_000_000,
        }
        return {"topic": name, "topic_id": id_, "partitions": [{**values, **more}]}

    async def ask(what: str, *topics: Any, **more: Any) -> Any:
        values = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 10_000_000,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "forgotten_topics_data": [],
        }
        return await at.ask(what, ApiKey.FETCH, topics=topics, **{**values, **more})

    await ask("no topics")
    for offset in (0, 1, 2, 5, 6, 7, 100, -1, -2):
        await ask(f"offset {offset}", wanted(offset))
        await ask(f"offset {offset}, committed", wanted(offset), isolation_level=1)
    await ask("isolation 2", wanted(0), isolation_level=2)
    await ask("empty partition", wanted(0, 1))
    await ask("absent partition", wanted(0, 7))
    await ask("negative partition", wanted(0, -1))
    await ask("absent topic", wanted(0, name=at.name("absent"), id_=ABSENT_ID))
    await ask("absent and good", wanted(0, name=at.name("absent"), id_=ABSENT_ID), wanted(4))
    await ask("zero id", wanted(0, name="", id_=bytes(16)))
    await ask("twice", wanted(0), wanted(4))
    await ask("one byte of a partition", wanted(0, partition_max_bytes=1))
    await ask("zero bytes of a partition", wanted(0, partition_max_bytes=0))
    await ask("one byte", wanted(0), wanted(0, 1), max_bytes=1)
    await ask("zero bytes", wanted(0), max_bytes=0)
    await ask("minimum not there", wanted(6), min_bytes=1, max_wait=50)
    if version >= 9:
        for epoch in (0, 1, 5):
            await ask(f"leader epoch {epoch}", wanted(0, current_leader_epoch=epoch))
    if version >= 12:
        for epoch, offset in ((0, 3), (0, 6), (1, 3), (5, 6)):
            await ask(f"last epoch {epoch} at {offset}", wanted(offset, last_fetched_epoch=epoch))
    if version >= 7:
        first = await ask("new session", wanted(0), session_epoch=0)
        session = first.session_id
        await ask("nothing new", session_id=session, session_epoch=1)
        await ask("wrong epoch", session_id=session, session_epoch=7)
        await ask("the epoch before", session_id=session, session_epoch=1)
        await ask("next epoch", wanted(4), session_id=session, session_epoch=2)
        await ask("one more", wanted(0, name=other, id_=other_id), session_id=session, session_epoch=3)
        forgotten = [{"topic": topic, "topic_id": topic_id, "partitions": [0]}]
        await ask("one fewer", session_id=session, session_epoch=4, forgotten_topics_data=forgotten)
        await at.produce("data for the session", other, batch(b"x"))
        await ask("what came", session_id=session, session_epoch=5)
        await ask(
            "absent in a session", wanted(0, name=at.name("absent"), id_=ABSENT_ID), session_id=session, session_epoch=6
        )
        await ask("out of range in a session", wanted(99), session_id=session, session_epoch=7)
        await ask("its error again", session_id=session, session_epoch=8)
        await ask("unknown session", session_id=12345, session_epoch=1)
        await ask("unknown session, first", wanted(0), session_id=12345, session_epoch=0)
        await ask("closed", session_id=session, session_epoch=-1)
        await ask("after its end", session_id=session, session_epoch=9)
        await ask("no session, epoch 3", wanted(0), session_epoch=3)
    await at.ask(
        "delete records",
        ApiKey.DELETE_RECORDS,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}],
        timeout=30_000,
    )
    for offset in (0, 2, 3):
        await ask(f"offset {offset} after deleting", wanted(offset))


@scenario(ApiKey.LIST_OFFSETS)
async def list_offsets(at: Side, version: int) -> None:
    topic, empty = await at.topic("one", 2), await at.topic("empty")
    for n in range(4):
        await at.produce(f"data {n}", topic, batch(b"a", b"b", at_ms=1_000 * (n + 1)))
    await at.produce("late", topic, batch(b"z", at_ms=500))

    async def ask(what: str, timestamp: int, name: str = topic, partition: int = 0, **more: Any) -> None:
        one = {"partition_index": partition, "current_leader_epoch": more.pop("epoch", -1), "timestamp": timestamp}
        values = {"replica_id": -1, "isolation_level": 0, "timeout": 30_000}
        topics = [{"name": name, "partitions": [one] * more.pop("times", 1)}]
        await at.ask(what, ApiKey.LIST_OFFSETS, topics=topics, **{**values, **more})

    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 500, 1000, 1001, 1002, 2000, 3999, 4001, 4002, 10**15):
        await ask(f"at {timestamp}", timestamp)
        await ask(f"at {timestamp}, committed", timestamp, isolation_level=1)
        await ask(f"at {timestamp}, empty", timestamp, empty)
    await ask("absent", -1, at.name("absent"))
    await ask("bad name", -1, "a/b")
    await ask("absent partition", -1, partition=9)
    await ask("negative partition", -1, partition=-1)
    await ask("twice", -1, times=2)
    await ask("isolation 2", -1, isolation_level=2)
    for replica in (0, 1, 5, -2, -3):
        await ask(f"replica {replica}", -1, replica_id=replica)
    if version >= 4:
        for epoch in (0, 1, 7):
            await ask(f"epoch {epoch}", -1, epoch=epoch)
    await at.ask("no topics", ApiKey.LIST_OFFSETS, topics=[], replica_id=-1)


@scenario(ApiKey.OFFSET_FOR_LEADER_EPOCH)
async def offset_for_leader_epoch(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    await at.produce("data", topic, batch(b"a", b"b"))

    async def ask(
        what: str, epoch: int, current: int = -1, name: str = topic, partition: int = 0, replica: int = -1
    ) -> None:
        one = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": name, "partitions": [one]}]
        await at.ask(what, ApiKey.OFFSET_FOR_LEADER_EPOCH, replica_id=replica, topics=topics)

    for epoch in (-1, 0, 1, 5):
        await ask(f"epoch {epoch}", epoch)
        await ask(f"epoch {epoch}, empty", epoch, partition=1)
        await ask(f"current epoch {epoch}", 0, current=epoch)
    await ask("absent", 0, name=at.name("absent"))
    await ask("absent partition", 0, partition=9)
    await ask("a replica", 0, replica=1)
    await ask("debugging", 0, replica=-2)


@scenario(ApiKey.DELETE_RECORDS)
async def delete_records(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    compacted = await at.topic("compacted", cleanup_policy="compact")
    both = await at.topic("both", cleanup_policy="compact,delete")
    for name in (topic, compacted, both):
        await at.produce("data", name, batch(b"a", b"b", b"c"))

    async def ask(what: str, *offsets: int, name: str = topic, partition: int = 0) -> None:
        partitions = [{"partition_index": partition, "offset": offset} for offset in offsets]
        await at.ask(what, ApiKey.DELETE_RECORDS, topics=[{"name": name, "partitions": partitions}], timeout=30_000)

    await ask("one", 1)
    await ask("again", 1)
    await ask("back", 0)
    await ask("too far", 9)
    await ask("minus two", -2)
    await ask("minus three", -3)
    await ask("twice", 2, 3)
    await ask("to the end", -1)
    await ask("after the end", 4)
    await ask("empty partition", -1, partition=1)
    await ask("compacted", 1, name=compacted)
    await ask("compacted and deleted", 1, name=both)
    await ask("absent", 0, name=at.name("absent"))
    await ask("bad name", 0, name="a/b")
    await ask("absent partition", 0, partition=9)
    await ask("negative partition", 0, partition=-1)
    await ask("internal", 0, name="__consumer_offsets")
    await at.ask("none", ApiKey.DELETE_RECORDS, topics=[], timeout=30_000)


@scenario(ApiKey.DESCRIBE_PRODUCERS)
async def describe_producers(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    pid = await producer_id(at)
    await at.produce("data", topic, batch(b"a", b"b", producer=(pid, 0), sequence=0))
    for what, name, partitions in (
        ("one", topic, [0]),
        ("none", topic, [1]),
        ("absent partition", topic, [9, -1]),
        ("twice", topic, [0, 0]),
        ("absent", at.name("absent"), [0]),
        ("bad name", "a/b", [0]),
        ("no partitions", topic, []),
    ):
        topics = [{"name": name, "partition_indexes": partitions}]
        await at.ask(what, ApiKey.DESCRIBE_PRODUCERS, topics=topics)
