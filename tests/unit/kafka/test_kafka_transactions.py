"""The transactional APIs of the Kafka listener, raw, in every version: what each protocol does, and in which codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaClient, close_clients
from kafka_transactions import (
    GROUP,
    ID,
    PRODUCE_NEWER,
    PRODUCE_OLDER,
    A,
    B,
    Kafka,
    next_of,
    parts_of,
)
from running_node import create_topic, running_node

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX
from semel.protocol.api.groups import GroupProtocol, JoinGroupRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.errors import ErrorCode, RetriableError, UsageError
from semel.protocol.ids import MAX_PRODUCER_EPOCH, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import to_ms
from semel.txn_coordinator.config import TRANSACTIONAL_ID_BYTES_MAX

MEMBER = JoinGroupRequest(
    group_id=GROUP,
    member_id="",
    group_instance_id=None,
    protocol_type="consumer",
    protocols=(GroupProtocol("range", bytes(10)),),
    session_timeout_ms=30_000,
    rebalance_timeout_ms=30_000,
    client_id="c",
    client_host="h",
    new_member_id="m",
    require_known_member_id=False,
)


ENDS = [(commit, version) for commit in (True, False) for version in range(6)]
PRODUCES = (PRODUCE_OLDER, PRODUCE_NEWER)


def with_node(
    folder: Path, test: Callable[[Kafka], Awaitable[None]], *, new_topic: bool = True, **settings: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), running_node(folder, **settings) as node:
            if new_topic:
                await create_topic(node, "a", 2)
            client = await KafkaClient.connect(node.kafka_address.port)
            try:
                await test(Kafka(node, client))
            finally:
                await close_clients()

    asyncio.run(main())


# --- Both protocols, from beginning to end ----------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", range(5))
def test_the_older_protocol_in_every_version(tmp_path: Path, version: int, commit: bool) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin(version)
        for number in range(2):
            assert await kafka.add(producer, A, B, version=min(version, 3)) == [ErrorCode.NONE] * 2
            assert await kafka.send(producer, b"x", number, version=3 + 2 * version) is ErrorCode.NONE
            assert await kafka.add_offsets(producer, version) is ErrorCode.NONE
            assert await kafka.commit_offset(producer, 7 + number, version) is ErrorCode.NONE
            assert await kafka.end(producer, commit, version) is ErrorCode.NONE
            # Repeated, it has the same answer (T7), and the epoch stays.
            while (again := await kafka.end(producer, commit, version)) is ErrorCode.CONCURRENT_TRANSACTIONS:
                pass
            assert again is ErrorCode.NONE
            await kafka.settled()
            assert await kafka.committed() == (7 + number if commit else -1)
        assert await kafka.begin(version) == next_of(producer)

    with_node(tmp_path, test)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_T6_the_newer_protocol_adds_partitions_itself_and_moves_the_epoch_on(tmp_path: Path, commit: bool) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        for number in range(2):
            while (sent := await kafka.send(producer, b"x", version=PRODUCE_NEWER)) is not ErrorCode.NONE:
                assert sent is ErrorCode.CONCURRENT_TRANSACTIONS
            assert await kafka.commit_offset(producer, 7 + number, 5) is ErrorCode.NONE
            following = await kafka.end(producer, commit)
            assert following == next_of(producer)
            await kafka.settled()
            assert await kafka.end(producer, commit) == following
            assert await kafka.end(producer, not commit) is ErrorCode.INVALID_TXN_STATE
            assert await kafka.send(producer, b"late", 1, version=PRODUCE_NEWER) is ErrorCode.INVALID_PRODUCER_EPOCH
            assert await kafka.committed() == (7 + number if commit else -1)
            producer = following

    with_node(tmp_path, test)


def test_T10_at_the_end_of_the_epochs_end_txn_names_a_new_producer_id(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        shard = kafka.node.transactions._runtime._shards[kafka.node.transactions.partition_for(ID)]
        transactions = shard._machine._transactions  # type: ignore[attr-defined]
        transactions[ID] = transactions[ID]._replace(producer_epoch=MAX_PRODUCER_EPOCH)
        last = ProducerIdAndEpoch(producer.producer_id, MAX_PRODUCER_EPOCH)
        assert await kafka.send(last, b"x", version=PRODUCE_NEWER) is ErrorCode.NONE
        following = await kafka.end(last)
        assert isinstance(following, ProducerIdAndEpoch)
        assert following.producer_id > last.producer_id
        assert following.producer_epoch == 0
        await kafka.settled()
        assert await kafka.send(following, b"y", version=PRODUCE_NEWER) is ErrorCode.NONE
        assert await kafka.end(following) == next_of(following)

    with_node(tmp_path, test)


def test_T8_a_batch_of_the_older_protocol_needs_its_partition_added_first(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        for version, code in ((3, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)):
            assert await kafka.send(producer, b"x", version=version) is code
        assert await kafka.add(producer, B) == [ErrorCode.NONE]
        assert await kafka.send(producer, b"x", version=PRODUCE_OLDER) is ErrorCode.TRANSACTION_ABORTABLE
        # The same for offsets: without AddOffsetsToTxn they are in no transaction.
        for version in range(5):
            code = ErrorCode.INVALID_TXN_STATE if version < 4 else ErrorCode.TRANSACTION_ABORTABLE
            assert await kafka.commit_offset(producer, 7, version) is code
        assert await kafka.end(producer, version=3) is ErrorCode.NONE
        await kafka.settled()
        assert await kafka.committed() == -1

    with_node(tmp_path, test)


# --- Producer ids -----------------------------------------------------------------------------------------------------


def test_producer_ids_without_a_transactional_id_differ_and_need_no_coordinator(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        found = [await kafka.init(version, name=None) for version in range(6)]
        assert len(set(found)) == 6
        assert all(isinstance(producer, ProducerIdAndEpoch) and producer.producer_epoch == 0 for producer in found)
        assert kafka.node.metadata.topic(TRANSACTIONS_TOPIC) is None

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(6))
def test_what_init_producer_id_refuses(tmp_path: Path, version: int) -> None:
    async def test(kafka: Kafka) -> None:
        assert await kafka.init(version, name="") is ErrorCode.INVALID_REQUEST
        assert await kafka.init(version, timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await kafka.init(version, timeout_ms=2**31 - 1) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await kafka.init(version, name="x" * 1_025) is ErrorCode.INVALID_REQUEST
        assert await kafka.init(version, name="é" * 513) is ErrorCode.INVALID_REQUEST
        assert await kafka.init(version, name="é" * 512) == ProducerIdAndEpoch(0, 0)
        if version >= 3:
            assert await kafka.init(version, held=(5, -1)) is ErrorCode.INVALID_REQUEST
            assert await kafka.init(version, held=(-1, 0)) is ErrorCode.INVALID_REQUEST

    with_node(tmp_path, test)


def test_S2_the_length_of_transactional_ids_is_a_setting_and_those_that_are_known_go_on(tmp_path: Path) -> None:
    """32 KB each were kept for a week, and read again at every start."""
    name = "x" * TRANSACTIONAL_ID_BYTES_MAX

    async def end(kafka: Kafka, producer: ProducerIdAndEpoch) -> Any:
        return await kafka.ask(ApiKey.END_TXN, 5, transactional_id=name, committed=False, **parts_of(producer))

    async def make(kafka: Kafka) -> None:
        assert await kafka.init(name=name) == ProducerIdAndEpoch(0, 0)

    async def meet(kafka: Kafka) -> None:
        assert await kafka.init(name=name) is ErrorCode.INVALID_REQUEST
        assert (await end(kafka, ProducerIdAndEpoch(0, 0))).error_code == ErrorCode.NONE
        assert await kafka.init(name="x" * 11) is ErrorCode.INVALID_REQUEST
        assert await kafka.init(name="x" * 10) == ProducerIdAndEpoch(1_000, 0)
        transactions = kafka.node.transactions
        with pytest.raises(UsageError, match=r"at most 10 bytes \(transactional\.id\.max\.bytes\), not 11"):
            await transactions.init_producer_id(InitProducerIdRequest("x" * 11, 60_000))
        # Writers of shared transactions have ids of the node's own making, and keys with a bound of their own.
        shared = OpenSharedRequest("k" * NAME_BYTES_MAX, attempt="a", token="t", timeout_ms=60_000, writer=True)
        assert (await transactions.open_shared(shared)).producer is not None
        for wrong in ({"key": "k" * (NAME_BYTES_MAX + 1)}, {"token": "t" * (NAME_BYTES_MAX + 1)}):
            with pytest.raises(UsageError, match=f"1 to {NAME_BYTES_MAX} bytes"):
                await transactions.open_shared(replace(shared, **wrong))

    with_node(tmp_path, make, transactional_id_max_bytes=TRANSACTIONAL_ID_BYTES_MAX)
    with_node(tmp_path, meet, transactional_id_max_bytes=10, new_topic=False)


def test_T5_a_caller_that_names_its_epoch_bumps_it_and_a_fenced_one_is_told_in_the_code_it_knows(
    tmp_path: Path,
) -> None:
    async def test(kafka: Kafka) -> None:
        first = await kafka.begin()
        bumped = await kafka.init(held=(first.producer_id, first.producer_epoch))
        assert bumped == next_of(first)
        assert await kafka.init(held=(first.producer_id, first.producer_epoch)) == bumped  # its answer was lost
        newer = await kafka.begin()
        assert newer == next_of(next_of(first))
        assert await kafka.init(3, held=(first.producer_id, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await kafka.init(4, held=(first.producer_id, 0)) is ErrorCode.PRODUCER_FENCED

    with_node(tmp_path, test)


async def init_two_phase(kafka: Kafka, *, keep: bool) -> Any:
    return await kafka.ask(
        ApiKey.INIT_PRODUCER_ID,
        6,
        transactional_id=ID,
        transaction_timeout=60_000,
        enable2_pc=True,
        keep_prepared_txn=keep,
    )


def test_KIP939_a_prepared_transaction_is_kept_and_ended_by_the_next_instance(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        answer = await init_two_phase(kafka, keep=True)
        first = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (-1, -1)
        assert await kafka.send(first, b"prepared", 0, version=PRODUCE_NEWER) is ErrorCode.NONE
        answer = await init_two_phase(kafka, keep=True)
        taken = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        assert taken == next_of(first)
        assert ProducerIdAndEpoch(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == first
        assert await kafka.end(first) is ErrorCode.PRODUCER_FENCED
        assert await kafka.end(taken) == next_of(taken)

    with_node(tmp_path, test, transaction_two_phase_commit_enable=True)


def test_KIP939_a_node_that_does_not_allow_two_phase_commit_refuses_it(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        answer = await init_two_phase(kafka, keep=False)
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    with_node(tmp_path, test)


# --- The codes of each version ----------------------------------------------------------------------------------------


def test_a_fenced_producer_is_told_in_the_code_that_its_version_knows(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        zombie = await kafka.begin()
        assert await kafka.add(zombie, A) == [ErrorCode.NONE]
        assert await kafka.add_offsets(zombie) is ErrorCode.NONE
        assert await kafka.begin() == ProducerIdAndEpoch(zombie.producer_id, zombie.producer_epoch + 2)
        for version in range(6):
            fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
            assert await kafka.end(zombie, version=version) is fenced
            if version < 5:
                assert await kafka.add_offsets(zombie, version) is fenced
            if version < 4:
                assert await kafka.add(zombie, A, version=version) == [fenced]
            else:
                for verify_only in (False, True):
                    asked = (ID, zombie, verify_only, [A])
                    assert await kafka.add_as_node(asked, version=version) == {ID: [ErrorCode.PRODUCER_FENCED]}
            assert await kafka.commit_offset(zombie, 3, version) is ErrorCode.INVALID_PRODUCER_EPOCH
        for version in (3, PRODUCE_OLDER, PRODUCE_NEWER):
            assert await kafka.send(zombie, b"x", version=version) is ErrorCode.INVALID_PRODUCER_EPOCH

    with_node(tmp_path, test)


def test_a_stranger_is_told_that_its_producer_id_is_not_the_ids_own(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        stranger = ProducerIdAndEpoch(77, 0)
        for known in (False, True):
            if known:
                await kafka.begin()
            for version in range(6):
                wrong = ErrorCode.INVALID_PRODUCER_ID_MAPPING
                assert await kafka.end(stranger, version=version) is wrong
                assert await kafka.commit_offset(stranger, 3, version) is wrong
                if version < 5:
                    assert await kafka.add_offsets(stranger, version) is wrong
                if version < 4:
                    assert await kafka.add(stranger, A, version=version) == [wrong]
            assert await kafka.send(stranger, b"x", version=PRODUCE_OLDER) is wrong

    with_node(tmp_path, test)


def test_T5_T7_while_markers_are_on_their_way_everybody_is_told_to_come_again(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        writer = kafka.node.transactions._sender._writer
        write, gate = writer.write_markers, asyncio.Event()

        async def held(marker: Any) -> Any:
            await gate.wait()
            return await write(marker)

        writer.write_markers = held  # type: ignore[method-assign]
        producer = await kafka.begin()
        assert await kafka.add(producer, A) == [ErrorCode.NONE]
        assert await kafka.add_offsets(producer) is ErrorCode.NONE
        assert await kafka.end(producer, version=3) is ErrorCode.NONE
        pending = ErrorCode.CONCURRENT_TRANSACTIONS
        for version in range(6):
            assert await kafka.init(version) is pending
            assert await kafka.end(producer, version=version) is pending
            if version < 5:
                assert await kafka.add_offsets(producer, version) is pending
            if version < 4:
                assert await kafka.add(producer, A, version=version) == [pending]
            # Clients of these versions stop at CONCURRENT_TRANSACTIONS here, the oldest at "loading" too.
            come_again = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await kafka.commit_offset(producer, 3, version) is (pending if version == 5 else come_again)
        assert await kafka.send(producer, b"x", version=PRODUCE_OLDER) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await kafka.send(producer, b"x", version=PRODUCE_NEWER) is pending
        gate.set()
        await kafka.settled()
        assert await kafka.add(producer, A) == [ErrorCode.NONE]

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(6))
def test_E1_offsets_come_again_while_the_node_that_coordinates_their_transaction_is_away(
    tmp_path: Path, version: int
) -> None:
    """A Java producer takes NETWORK_EXCEPTION for the end of itself here."""

    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        assert await kafka.add_offsets(producer) is ErrorCode.NONE
        coordinator = kafka.node.transactions

        async def away(*what: Any) -> Any:
            raise RetriableError("node 2 does not answer", ErrorCode.NETWORK_EXCEPTION)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(coordinator, "verify", away)
            patched.setattr(coordinator, "add_partitions", away)
            come_again = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await kafka.commit_offset(producer, 3, version) is come_again
        assert await kafka.commit_offset(producer, 3, version) is ErrorCode.NONE

    with_node(tmp_path, test)


def test_T5_T7_who_was_fenced_hears_so_at_once_though_markers_are_on_their_way(tmp_path: Path) -> None:
    """In each version's code, by every API that a producer calls amid its transaction, and as it is afterwards."""

    async def refusals(kafka: Kafka, old: ProducerIdAndEpoch) -> list[tuple[str, ErrorCode]]:
        found = [(f"{commit} {version}", await kafka.end(old, commit, version)) for commit, version in ENDS]
        found += [(f"add {version}", (await kafka.add(old, A, version=version))[0]) for version in range(4)]
        found += [(f"offsets {version}", await kafka.add_offsets(old, version)) for version in range(5)]
        found += [(f"commit {version}", await kafka.commit_offset(old, 3, version)) for version in range(6)]
        found += [(f"send {each}", await kafka.send(old, b"x", 1, tp=B, version=each)) for each in PRODUCES]
        for verify_only in (True, False):
            found.append(("node", (await kafka.add_as_node((ID, old, verify_only, [B])))[ID][0]))
        return found

    async def test(kafka: Kafka) -> None:
        writer = kafka.node.transactions._sender._writer
        write, gate = writer.write_markers, asyncio.Event()

        async def held(marker: Any) -> Any:
            await gate.wait()
            return await write(marker)

        old = await kafka.begin()
        assert await kafka.add(old, A) == [ErrorCode.NONE]
        writer.write_markers = held  # type: ignore[method-assign]
        assert await kafka.init() is ErrorCode.CONCURRENT_TRANSACTIONS
        amid = await refusals(kafka, old)
        told = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
        assert {code for _, code in amid} == told, amid
        assert await kafka.init() is ErrorCode.CONCURRENT_TRANSACTIONS, "its successor retries"
        gate.set()
        await kafka.settled()
        assert await refusals(kafka, old) == amid
        assert isinstance(await kafka.init(), ProducerIdAndEpoch)

    with_node(tmp_path, test)


def test_T11_an_end_without_a_transaction(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        for version in range(5):
            for commit in (True, False):
                assert await kafka.end(producer, commit, version) is ErrorCode.INVALID_TXN_STATE
        assert await kafka.end(producer) is ErrorCode.INVALID_TXN_STATE
        # An abort moves the epoch on, so that a batch still on its way can't join the next transaction.
        assert await kafka.end(producer, commit=False) == next_of(producer)

    with_node(tmp_path, test)


# --- Partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_partitions_that_cannot_be_added_keep_the_others_out(tmp_path: Path, version: int) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        nowhere, internal = TopicPartition("b", 0), TopicPartition(OFFSETS_TOPIC, 0)
        codes = await kafka.add(producer, A, nowhere, TopicPartition("a", 9), internal, version=version)
        assert codes == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert await kafka.end(producer, version=3) is ErrorCode.INVALID_TXN_STATE, "nothing was begun"
        assert await kafka.add(producer, A, A, version=version) == [ErrorCode.NONE] * 2

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", [4, 5])
def test_T8_a_node_verifies_and_adds_for_several_transactions_at_once(tmp_path: Path, version: int) -> None:
    async def test(kafka: Kafka) -> None:
        producer, other = await kafka.begin(), await kafka.begin(name="other")
        assert await kafka.add(producer, A) == [ErrorCode.NONE]
        abortable, none = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE
        asked = [(ID, producer, True, [A, B]), ("other", other, True, [A])]
        assert await kafka.add_as_node(*asked, version=version) == {ID: [none, abortable], "other": [abortable]}
        await kafka.node.groups.topic_ready()
        group = kafka.node.groups.offsets_partition(GROUP)
        added = [(ID, producer, False, [B]), ("other", other, False, [A, group]), ("none", other, False, [A])]
        assert await kafka.add_as_node(*added, version=version) == {
            ID: [none],
            "other": [none, none],
            "none": [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
        }
        asked = [(ID, producer, True, [A, B]), ("other", other, True, [A, group, B])]
        assert await kafka.add_as_node(*asked, version=version) == {ID: [none, none], "other": [none, none, abortable]}

    with_node(tmp_path, test)


def test_more_transactions_than_are_asked_about_side_by_side_are_all_answered(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        names = [f"none-{number}" for number in range(450)]
        answers = await kafka.add_as_node(*((name, producer, True, [A]) for name in names))
        assert list(answers) == names
        assert {code for codes in answers.values() for code in codes} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    with_node(tmp_path, test)


# --- Offsets ----------------------------------------------------------------------------------------------------------


def test_O4_offsets_of_a_member_are_fenced_and_those_of_clients_that_cannot_say_who_they_are_let_through(
    tmp_path: Path,
) -> None:
    async def test(kafka: Kafka) -> None:
        await kafka.node.groups.topic_ready()
        joined = await kafka.node.groups.join(MEMBER)
        producer = await kafka.begin()
        assert await kafka.add_offsets(producer) is ErrorCode.NONE
        for version in range(5):
            assert await kafka.commit_offset(producer, version, version) is ErrorCode.NONE
        for version in (3, 4, 5):
            wrong = {"generation_id": joined.generation_id + 1, "member_id": joined.member_id}
            assert await kafka.commit_offset(producer, 1, version, **wrong) is ErrorCode.ILLEGAL_GENERATION
            wrong = {"generation_id": joined.generation_id, "member_id": "nobody"}
            assert await kafka.commit_offset(producer, 1, version, **wrong) is ErrorCode.UNKNOWN_MEMBER_ID
            right = {"generation_id": joined.generation_id, "member_id": joined.member_id}
            assert await kafka.commit_offset(producer, 90 + version, version, **right) is ErrorCode.NONE
        assert isinstance(await kafka.end(producer), ProducerIdAndEpoch)
        await kafka.settled()
        assert await kafka.committed() == 95

    with_node(tmp_path, test, group_initial_rebalance_delay_ms=0)


@pytest.mark.parametrize("version", range(6))
def test_what_a_transactional_commit_of_offsets_refuses(tmp_path: Path, version: int) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        assert await kafka.add_offsets(producer, min(version, 4)) is ErrorCode.NONE
        assert await kafka.add_offsets(producer, min(version, 4), group="") is ErrorCode.INVALID_GROUP_ID
        assert await kafka.commit_offset(producer, 1, version, group_id="") is ErrorCode.INVALID_GROUP_ID
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await kafka.commit_offset(producer, 1, version, tp=TopicPartition("b", 0)) is unknown

    with_node(tmp_path, test)


# --- What operators see (their markers: test_foreign_markers.py) ------------------------------------------------------


def test_describe_producers_says_what_is_wrong_with_a_partition(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        asked = [{"name": "a", "partition_indexes": [0, 7, 0]}, {"name": "b", "partition_indexes": [0]}] * 2
        answer = await kafka.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)
        found = [(item.error_code, item.error_message) for topic in answer.topics for item in topic.partitions]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [code for code, _ in found] == [ErrorCode.NONE, unknown, unknown]
        assert found[0][1] is None
        assert "0 to 1" in found[1][1]

    with_node(tmp_path, test)


def test_transactions_are_described_and_listed_with_every_filter(tmp_path: Path) -> None:
    async def listed(kafka: Kafka, version: int, **filters: Any) -> list[str]:
        filters = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = await kafka.ask(ApiKey.LIST_TRANSACTIONS, version, **filters)
        assert answer.error_code == 0
        return [f"{item.transactional_id}:{item.transaction_state}" for item in answer.transaction_states]

    async def test(kafka: Kafka) -> None:
        assert await listed(kafka, 2) == []
        assert kafka.node.metadata.topic(TRANSACTIONS_TOPIC) is None, "asking makes no topic"
        producer = await kafka.begin()
        await kafka.begin(name="other")
        assert await kafka.add(producer, B, A) == [ErrorCode.NONE] * 2
        for version in range(3):
            assert await listed(kafka, version) == ["other:Empty", "t:Ongoing"]
            assert await listed(kafka, version, state_filters=["Ongoing"]) == ["t:Ongoing"]
            assert await listed(kafka, version, producer_id_filters=[producer.producer_id]) == ["t:Ongoing"]
            assert await listed(kafka, version, state_filters=["Nowhere"]) == []
        assert await listed(kafka, 1, duration_filter=3_600_000) == []
        assert await listed(kafka, 2, transactional_id_pattern="o.*") == ["other:Empty"]
        assert await listed(kafka, 2, transactional_id_pattern=None) == ["other:Empty", "t:Ongoing"]
        answer = await kafka.ask(
            ApiKey.LIST_TRANSACTIONS, 0, state_filters=["Nowhere", "Empty"], producer_id_filters=[]
        )
        assert answer.unknown_state_filters == ("Nowhere",)
        refused = await kafka.ask(
            ApiKey.LIST_TRANSACTIONS,
            2,
            state_filters=[],
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern="(",
        )
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        # kio can't read that no transaction is open (-1): tests/compat asks with a client that can.
        (found,) = (await kafka.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[ID])).transaction_states
        assert (found.error_code, found.transaction_state) == (0, "Ongoing")
        assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.producer_epoch)
        assert [(topic.topic, topic.partitions) for topic in found.topics] == [("a", (0, 1))]
        assert to_ms(found.transaction_timeout) == 60_000

    with_node(tmp_path, test)
