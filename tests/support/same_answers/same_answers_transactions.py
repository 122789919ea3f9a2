"""Scenarios about transactions of both protocols: in order, in the wrong order, again, and by those who may not."""

from __future__ import annotations

import asyncio
from typing import Any

from same_answers import CONCURRENT_TRANSACTIONS, COORDINATOR_LOADS, RETRY_S, Side, batch, scenario

from semel.protocol.kafka.api import ApiKey

NOT_ENOUGH_REPLICAS = 19
"""What producers of the older protocol are told instead of CONCURRENT_TRANSACTIONS."""
PATIENT = COORDINATOR_LOADS | {CONCURRENT_TRANSACTIONS, NOT_ENOUGH_REPLICAS}

Producer = tuple[int, int]


async def init(
    at: Side, what: str, txn: str | None, owner: Producer = (-1, -1), timeout_ms: int = 60_000, **more: Any
) -> Producer:
    answer = await at.ask(
        what,
        ApiKey.INIT_PRODUCER_ID,
        transactional_id=txn,
        transaction_timeout=timeout_ms,
        producer_id=owner[0],
        producer_epoch=owner[1],
        until_not=more.pop("until_not", PATIENT),
        **more,
    )
    return answer.producer_id, answer.producer_epoch


async def add(
    at: Side, what: str, txn: str, owner: Producer, *partitions: tuple[str, int], version: int | None = None
) -> None:
    """Add partitions in the request of one transaction; newer versions are for brokers."""
    used = min(at.version_of(ApiKey.ADD_PARTITIONS_TO_TXN), 3) if version is None else version
    topics = [{"name": topic, "partitions": [number]} for topic, number in partitions]
    one = {"transactional_id": txn, "producer_id": owner[0], "producer_epoch": owner[1], "topics": topics}
    many = [{**one, "verify_only": False}]
    if used < 4:
        values: dict[str, Any] = {
            "v3_and_below_transactional_id": txn,
            "v3_and_below_producer_id": owner[0],
            "v3_and_below_producer_epoch": owner[1],
            "v3_and_below_topics": topics,
        }
    else:
        values = {"transactions": many}
    await at.ask(what, ApiKey.ADD_PARTITIONS_TO_TXN, version=used, until_not=PATIENT, **values)


async def end(at: Side, what: str, txn: str, owner: Producer, committed: bool, version: int, **more: Any) -> Producer:
    answer = await at.ask(
        what,
        ApiKey.END_TXN,
        version=version,
        transactional_id=txn,
        producer_id=owner[0],
        producer_epoch=owner[1],
        committed=committed,
        until_not=more.get("until_not", PATIENT),
    )
    if version >= 5 and answer.error_code == 0:
        return answer.producer_id, answer.producer_epoch
    return owner


async def send(at: Side, what: str, topic: str, txn: str | None, owner: Producer, sequence: int, **more: Any) -> None:
    """Produce one record of the transaction."""
    version = more.pop("version", at.version_of(ApiKey.PRODUCE))
    named: dict[str, Any] = {"name": topic} if version < 13 else {"topic_id": await at.topic_id(topic)}
    transactional = more.pop("transactional", True)
    data = batch(b"a", producer=owner, sequence=sequence, transactional=transactional)
    named["partition_data"] = [{"index": more.pop("partition", 0), "records": data}]
    values = {"transactional_id": txn, "acks": -1, "timeout": 30_000}
    await at.ask(what, ApiKey.PRODUCE, version=version, topic_data=[named], until_not=PATIENT, **values)


async def settled(at: Side, txn: str) -> None:
    """Wait until no markers of it are on their way."""
    beside = Side.beside(at)
    try:
        while True:
            seen = await beside.ask("wait", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn])
            if not seen.transaction_states[0].transaction_state.startswith("Prepare"):
                break
            await asyncio.sleep(RETRY_S)
    finally:
        await beside.close()


async def look(at: Side, what: str, txn: str, topic: str) -> None:
    """What others see of it, once no markers are on their way."""
    await settled(at, txn)
    await at.ask(f"{what}: described", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn])
    one = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000_000,
    }
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1_000_000, "session_id": 0, "session_epoch": -1}
    topics = [{"topic": topic, "partitions": [one]}]
    await at.ask(f"{what}: read", ApiKey.FETCH, version=12, topics=topics, isolation_level=1, **limits)


@scenario(ApiKey.INIT_PRODUCER_ID)
async def init_producer_id(at: Side, version: int) -> None:
    txn = at.name("txn")
    await init(at, "no transactions", None)
    await init(at, "empty name", "")
    for timeout in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
        await init(at, f"timeout {timeout}", at.name(f"timeout-{timeout}"), timeout_ms=timeout)
        await init(at, f"timeout {timeout}, no transactions", None, timeout_ms=timeout)
    first = await init(at, "first", txn)
    second = await init(at, "T5: again", txn)
    assert first[0] == second[0]
    if version >= 3:
        third = await init(at, "T5: with the epoch", txn, second)
        await init(at, "T5: retried with the last epoch", txn, second)
        await init(at, "T5: an older epoch", txn, first)
        await init(at, "T5: a newer epoch", txn, (first[0], 30))
        await init(at, "T5: another id", txn, (first[0] + 1000, 0))
        await init(at, "an id without an epoch", txn, (first[0], -1))
        await init(at, "an epoch without an id", txn, (-1, 2))
        await init(at, "unknown, with an id", at.name("unknown"), (987_654, 3))
        await init(at, "no transactions, with an id", None, third)
    if version >= 6:
        for enable, keep in ((True, False), (False, True), (True, True)):
            flags = {"enable2_pc": enable, "keep_prepared_txn": keep}
            await init(at, f"two-phase {enable} {keep}", at.name(f"2pc-{enable}-{keep}"), **flags)


@scenario(ApiKey.ADD_PARTITIONS_TO_TXN)
async def add_partitions(at: Side, version: int) -> None:
    topic, txn = await at.topic("one", 3), at.name("txn")
    used = {"version": version}
    await add(at, "unknown transaction", txn, (5, 0), (topic, 0), **used)
    owner = await init(at, "init", txn)
    pid, epoch = owner
    await add(at, "other producer", txn, (pid + 1000, epoch), (topic, 0), **used)
    await add(at, "epoch too high", txn, (pid, epoch + 1), (topic, 0), **used)
    await add(at, "epoch too low", txn, (pid, epoch - 1), (topic, 0), **used)
    await add(at, "empty name", "", owner, (topic, 0), **used)
    await add(at, "no partitions", txn, owner, **used)
    await add(at, "absent and good", txn, owner, (at.name("absent"), 0), (topic, 0), **used)
    await add(at, "absent partition", txn, owner, (topic, 7), **used)
    await add(at, "one", txn, owner, (topic, 0), **used)
    await add(at, "again", txn, owner, (topic, 0), **used)
    await add(at, "twice", txn, owner, (topic, 1), (topic, 1), **used)
    await at.ask("described", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn])
    if version >= 4:

        def verify(name: str, who: Producer, *numbers: int, verify_only: bool = True) -> dict[str, Any]:
            topics = [{"name": topic, "partitions": numbers}]
            values = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1], "topics": topics}
            return {**values, "verify_only": verify_only}

        key = ApiKey.ADD_PARTITIONS_TO_TXN
        await at.ask("verified", key, transactions=[verify(txn, owner, 0)])
        await at.ask("not verified", key, transactions=[verify(txn, owner, 2)])
        await at.ask("both", key, transactions=[verify(txn, owner, 0, 2)])
        await at.ask("verified of another", key, transactions=[verify(txn, (pid + 1, epoch), 0)])
        await at.ask("verified, old epoch", key, transactions=[verify(txn, (pid, epoch - 1), 0)])
        # Not a request without transactions: Apache Kafka 4.3 never answers it.
        await at.ask("two", key, transactions=[verify(txn, owner, 0), verify(at.name("absent"), owner, 0)])
    await end(at, "end", txn, owner, True, 4)
    await add(at, "begin the next", txn, owner, (topic, 0), **used)


@scenario(ApiKey.END_TXN)
async def end_txn(at: Side, version: int) -> None:
    """T7 and T11, in both protocols: version 5 bumps the epoch."""
    topic, txn = await at.topic("one", 2), at.name("txn")
    await end(at, "unknown", txn, (5, 0), True, version)
    owner = await init(at, "init", txn)
    await end(at, "T11: commit of nothing", txn, owner, True, version, until_not=COORDINATOR_LOADS)
    owner = await end(at, "T11: abort of nothing", txn, owner, False, version, until_not=COORDINATOR_LOADS)
    await look(at, "nothing", txn, topic)
    for committed in (True, False):
        word = "commit" if committed else "abort"
        await add(at, f"add, {word}", txn, owner, (topic, 0))
        await send(at, f"send, {word}", topic, txn, owner, 0 if version >= 5 else int(not committed), version=11)
        await look(at, f"open, {word}", txn, topic)
        await end(at, f"{word}, other id", txn, (owner[0] + 1000, owner[1]), committed, version)
        await end(at, f"{word}, epoch too high", txn, (owner[0], owner[1] + 1), committed, version)
        await end(at, f"{word}, epoch too low", txn, (owner[0], owner[1] - 1), committed, version)
        before = owner
        owner = await end(at, word, txn, before, committed, version)
        await end(at, f"T7: {word} again", txn, before, committed, version)
        await end(at, f"T7: the opposite of {word}", txn, before, not committed, version)
        await look(at, word, txn, topic)
        if version >= 5:
            await send(at, f"late, {word}", topic, txn, before, 1, version=11)
            await add(at, f"late add, {word}", txn, before, (topic, 0))
    await add(at, "T11: add without data", txn, owner, (topic, 1))
    before = owner
    owner = await end(at, "T11: commit without data", txn, owner, True, version)
    await end(at, "T11: again", txn, before, True, version)
    newer = await init(at, "a new producer", txn)
    await add(at, "fenced add", txn, owner, (topic, 0))
    await end(at, "fenced end", txn, owner, True, version)
    await end(at, "nothing of the new one", txn, newer, True, version, until_not=COORDINATOR_LOADS)
    await at.ask("empty name", ApiKey.END_TXN, transactional_id="", producer_id=5, producer_epoch=0, committed=True)


@scenario(ApiKey.PRODUCE)
async def transactional_produce(at: Side, version: int) -> None:
    """P6, T6, T8: who may write into a transaction."""
    topic, txn = await at.topic("one", 2), at.name("txn")
    owner = await init(at, "init", txn)
    used = {"version": version}
    newest_end = 5 if version >= 12 else 4
    await send(at, "without add", topic, txn, owner, 0, partition=1, **used)
    await add(at, "add", txn, owner, (topic, 0))
    await send(at, "one", topic, txn, owner, 0, **used)
    await send(at, "P1: duplicate", topic, txn, owner, 0, **used)
    await send(at, "P2: gap", topic, txn, owner, 5, **used)
    await send(at, "P6: not transactional", topic, None, owner, 1, transactional=False, **used)
    await send(at, "no name", topic, None, owner, 1, **used)
    await send(at, "other name", topic, at.name("other"), owner, 1, **used)
    await send(at, "other id", topic, txn, (owner[0] + 1000, 0), 0, **used)
    await send(at, "P4: old epoch", topic, txn, (owner[0], owner[1] - 1), 1, **used)
    await send(at, "new epoch", topic, txn, (owner[0], owner[1] + 1), 0, **used)
    await at.ask("producers", ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": [0, 1]}])
    await look(at, "open", txn, topic)
    before = owner
    owner = await end(at, "commit", txn, before, True, newest_end)
    await look(at, "committed", txn, topic)
    await send(at, "after the end", topic, txn, before, 1, **used)
    await send(at, "after the end, not transactional", topic, None, before, 1, transactional=False, **used)
    await at.ask("producers after", ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": [0, 1]}])
    second = await init(at, "fence", txn)
    await send(at, "fenced", topic, txn, owner, 0, **used)
    await add(at, "add again", txn, second, (topic, 0))
    await send(at, "by the new one", topic, txn, second, 0, **used)
    third = await init(at, "fence an open one", txn)
    await look(at, "fenced", txn, topic)
    await send(at, "by the one fenced", topic, txn, second, 1, **used)
    await end(at, "end by the one fenced", txn, second, True, newest_end)
    await add(at, "add by the third", txn, third, (topic, 0))
    await end(at, "abort by the third", txn, third, False, newest_end)
    await look(at, "in the end", txn, topic)


def _offsets(topic: str, number: int, offset: int, metadata: str | None = "m") -> list[dict[str, Any]]:
    one = {"partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1}
    return [{"name": topic, "partitions": [{**one, "committed_metadata": metadata}]}]


@scenario(ApiKey.TXN_OFFSET_COMMIT)
async def txn_offset_commit(at: Side, version: int) -> None:
    """O1, O2, O4: offsets in a transaction."""
    topic, txn, group = await at.topic("one", 2), at.name("txn"), at.name("group")
    newest_end = 5 if version >= 5 else 4
    owner = await init(at, "init", txn)

    async def commit(what: str, who: Producer, offset: int, number: int = 0, **more: Any) -> None:
        values = {
            "transactional_id": txn,
            "group_id": group,
            "producer_id": who[0],
            "producer_epoch": who[1],
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": _offsets(more.pop("topic", topic), number, offset, more.pop("metadata", "m")),
        }
        await at.ask(what, ApiKey.TXN_OFFSET_COMMIT, until_not=PATIENT, **{**values, **more})

    async def fetched(what: str, stable: bool) -> None:
        groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}]
        key = ApiKey.OFFSET_FETCH
        await at.ask(f"{what}, stable {stable}", key, version=8, groups=groups, require_stable=stable)

    async def add_group(what: str, who: Producer, name: str = group) -> None:
        key = ApiKey.ADD_OFFSETS_TO_TXN
        values = {"transactional_id": txn, "producer_id": who[0], "producer_epoch": who[1], "group_id": name}
        await at.ask(what, key, until_not=PATIENT, **values)

    await commit("without adding the group", owner, 3)
    await add_group("add the group", owner)
    await commit("one", owner, 5)
    await fetched("pending", False)
    await fetched("pending", True)
    await commit("absent topic", owner, 5, topic=at.name("absent"))
    await commit("absent partition", owner, 5, number=9)
    await commit("negative offset", owner, -5)
    await commit("long metadata", owner, 5, metadata="x" * 5000)
    await commit("empty group", owner, 5, group_id="")
    await commit("old epoch", (owner[0], owner[1] - 1), 6)
    await commit("other id", (owner[0] + 1000, 0), 6)
    await commit("other name", owner, 6, transactional_id=at.name("other"))
    if version >= 3:
        await commit("O4: generation of none", owner, 7, generation_id=3)
        await commit("O4: unknown member", owner, 7, generation_id=3, member_id="nobody")
        await commit("O4: member without generation", owner, 7, member_id="nobody")
        await commit("O4: unknown instance", owner, 7, generation_id=1, member_id="nobody", group_instance_id="static")
    await at.ask("delete it while it pends", ApiKey.DELETE_GROUPS, groups_names=[group])
    before = owner
    owner = await end(at, "commit", txn, before, True, newest_end)
    await fetched("committed", True)
    await settled(at, txn)
    await commit("late", before, 9)
    await add_group("again", owner)
    await commit("two", owner, 50)
    await end(at, "abort", txn, owner, False, newest_end)
    await fetched("aborted", True)


@scenario(ApiKey.ADD_OFFSETS_TO_TXN)
async def add_offsets(at: Side, version: int) -> None:
    txn, group = at.name("txn"), at.name("group")

    async def ask(what: str, who: Producer, name: str = txn, group_id: str = group) -> None:
        key = ApiKey.ADD_OFFSETS_TO_TXN
        values = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1], "group_id": group_id}
        await at.ask(what, key, until_not=PATIENT, **values)

    await ask("unknown", (5, 0))
    owner = await init(at, "init", txn)
    await ask("other id", (owner[0] + 1000, 0))
    await ask("epoch too high", (owner[0], owner[1] + 1))
    await ask("epoch too low", (owner[0], owner[1] - 1))
    await ask("empty name", owner, "")
    await ask("empty group", owner, group_id="")
    await ask("one", owner)
    await ask("again", owner)
    before = owner
    owner = await end(at, "T11: no offsets", txn, owner, True, 5)
    await ask("after the end", before)


@scenario(ApiKey.DESCRIBE_TRANSACTIONS)
async def describe_transactions(at: Side, version: int) -> None:
    txn, topic = at.name("txn"), await at.topic("one", 2)
    await at.ask("unknown", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn])
    await at.ask("empty name", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[""])
    await at.ask("none", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[])
    owner = await init(at, "init", txn)
    await at.ask("empty", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn, at.name("other")])
    await at.ask("twice", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn, txn])
    await add(at, "add", txn, owner, (topic, 0), (topic, 1))
    await at.ask("ongoing", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn])


@scenario(ApiKey.LIST_TRANSACTIONS)
async def list_transactions(at: Side, version: int) -> None:
    txn, topic = at.name("txn"), await at.topic("one")
    owner = await init(at, "init", txn)

    async def ask(what: str, *states: str, pids: tuple[int, ...] | None = None, **more: Any) -> None:
        values: dict[str, Any] = {"state_filters": states, "duration_filter": -1, "transactional_id_pattern": None}
        filters = [owner[0]] if pids is None else pids
        await at.ask(what, ApiKey.LIST_TRANSACTIONS, producer_id_filters=filters, **{**values, **more})

    await ask("its id")
    await ask("empty ones", "Empty")
    await ask("in lower case", "empty")
    await ask("unknown state", "Sleeping", "Empty")
    await ask("another id", pids=(987_654,))
    await ask("a negative id", pids=(-5,))
    await add(at, "add", txn, owner, (topic, 0))
    await ask("ongoing", "Ongoing")
    await ask("ongoing and others", "Ongoing", "PrepareCommit", "CompleteAbort")
    for duration in (0, 1_000_000, -2) if version >= 1 else ():
        await ask(f"longer than {duration}", duration_filter=duration)
    for pattern in (txn, ".*-txn", "", "txn", "(", "nothing.*") if version >= 2 else ():
        await ask(f"named {pattern.replace(txn, 'txn')}", transactional_id_pattern=pattern)
    await end(at, "end", txn, owner, True, 4)


@scenario(ApiKey.FIND_COORDINATOR)
async def find_coordinator(at: Side, version: int) -> None:
    for kind in (0, 1, 2, 9) if version >= 1 else (0,):
        for what, keys in (
            ("one", [at.name("x")]),
            ("empty", [""]),
            ("twice", ["x", "x"]),
            ("two", ["x", "y"]),
            ("none", []),
        ):
            if version >= 4:
                await at.ask(f"{what}, {kind}", ApiKey.FIND_COORDINATOR, key_type=kind, coordinator_keys=keys)
            elif len(keys) == 1:
                await at.ask(f"{what}, {kind}", ApiKey.FIND_COORDINATOR, key_type=kind, key=keys[0])
