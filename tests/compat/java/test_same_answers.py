"""The same requests to Apache Kafka and to a node: good ones, bad ones, edge cases, in each version that both serve.

Every difference between the answers is either a fault, or in DELIBERATE with its reason; docs/compatibility.md tells
users. A line of the table that no longer matches anything fails, too.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import kafka_jars
import pytest
import same_answers
import same_answers_groups
import same_answers_records
import same_answers_topics
import same_answers_transactions
import same_answers_users
from kafka_calls import request_body
from same_answers import SCENARIOS, Deliberate

from semel.cli.demo.processes import NodeProcess
from semel.protocol.kafka.api import ApiKey, build_request_header, parse_response_header
from semel.protocol.trace_context import TraceContext, encode_contexts, tagged_header

sys.path.append(str(Path(__file__).resolve().parent.parent.parent.parent / "bench"))

import apache_kafka

MODULES = (
    same_answers_groups,
    same_answers_records,
    same_answers_topics,
    same_answers_transactions,
    same_answers_users,
)

DELIBERATE = Deliberate(
    (
        r"\.configs\.keys \|",
        "settings of tiered storage, codecs' levels and flushing are not here, so they are not listed",
    ),
    (
        r"\.configs\.message\.timestamp\.after\.max\.ms",
        "the limit on times in the future is off by default, as in Kafka 3",
    ),
    (
        r"\.configs\.min\.insync\.replicas\.config_source",
        "Kafka writes the value down when a cluster is formatted; here it is a default",
    ),
    (
        r"create_topics: (internal|cluster metadata) \|",
        "names of the node's own logs are invalid for a topic, whether they exist or not",
    ),
    (r"create_topics: collides in a request \|", "names that collide are refused within a request, too"),
    (
        r"create_topics: config unclean\.leader\.election\.enable=TRUE \|",
        "there is no unclean election to enable: every replica set has one member",
    ),
    (r"create_topics: validate only \| .*topic_id", "what is only validated has no id"),
    (
        r"delete_topics: (empty name|a topic twice|id twice) \|",
        "what is wrong or asked for twice is told by the names and ids that are known",
    ),
    (
        r"metadata: absent( twice)? \|",
        "where creation can't be forbidden, the answer waits until the topic is made; Kafka's is an error",
    ),
    (
        r"metadata: (absent )?id.* \| METADATA v1[01]",
        "versions 10 and 11 have no ids in requests; the answer names the node all the same",
    ),
    (
        r"metadata: nothing \|",
        "a topic without name and id is an invalid request, and the answer names the node all the same",
    ),
    (r"(bad|empty) topic(, nothing)? \| \w+CONFIGS", "a name that no topic can have is an unknown topic"),
    (r"describe_configs: synonyms \|", "a topic's setting tells the default beneath it as well"),
    (
        r"incremental_alter_configs: (retention\.ms 9 5|no\.such 1 None|cleanup\.policy 3 absent) \|",
        "operations, names and words that don't exist are refused, also where they would change nothing",
    ),
    (r"incremental_alter_configs: a resource twice \|", "a resource that is asked for twice is answered once"),
    (
        r"(elect_leaders: twice|list_offsets: twice|delete_records: twice|describe_producers: twice|"
        r"describe_groups: absent twice|offset_fetch: a group twice|fetch: twice|"
        r"describe_transactions: twice|consumer_group_describe: twice|offset_commit: good and bad)",
        "what is asked for twice is answered once or twice, and Kafka's APIs differ, too",
    ),
    (
        r"describe_topic_partitions: (bad name|cursor)",
        "operations are told for every topic, and bad names have their own error",
    ),
    (
        r"alter_user_scram_credentials: no (salted password|salt) \|",
        "a password without salt, or without a hash, is UNACCEPTABLE_CREDENTIAL",
    ),
    (r"elect_leaders: bad kind \|", "an unknown kind of election is answered as a whole"),
    (
        r"produce: (too short|magic 1|bytes behind) \|",
        "bytes that are no whole batch are refused; what the older formats and cut batches are is CORRUPT_MESSAGE",
    ),
    (r"produce: far future \|", "the limit on times in the future is off by default, as in Kafka 3"),
    (r"PRODUCE v\d+ \| .*log_start_offset", "a refused batch has no log start offset"),
    (r"produce: too old \| .*record_errors", "a refused batch names its first bad record"),
    (r"idempotent_produce: P4: lower epoch \|", "a producer id with epoch -1 is no valid batch"),
    (
        r"(no name|transactional without a name) \|",
        "a transactional batch without the transaction's name is INVALID_TXN_STATE",
    ),
    (r"isolation 2 \|", "an isolation level that does not exist is refused for its partitions, or read as uncommitted"),
    (r"describe_producers: bad name \|", "a name that no topic can have is an unknown topic"),
    (r"COMMIT v\d+ .*offset_out_of_range", "an offset below zero can't be committed"),
    (
        r"offset_commit: generation of none \|",
        "a generation of a group that is not there is ILLEGAL_GENERATION in all versions",
    ),
    (r"offset_delete: after the last \|", "a group is gone with its last offset"),
    (r"consumer_group_heartbeat: empty group \|", "an empty name of a group is INVALID_GROUP_ID everywhere"),
    (
        r"consumer_group_heartbeat: (.*unknown group|after leaving) \|",
        "members of a group that is not there join again on UNKNOWN_MEMBER_ID",
    ),
    (
        r"consumer_group_heartbeat: .*epoch \| Kafka: 2 \| Semel: 1$",
        "epochs of groups begin at another number, and say nothing but which is newer",
    ),
    (r"transaction_start_time", "a transaction that has ended has no start"),
    (
        r"txn_offset_commit: .*stable True \|",
        "all offsets of a group name those that are pending, even where nothing is committed yet",
    ),
    (r"add_offsets: empty group \|", "an empty name of a group is INVALID_GROUP_ID everywhere"),
    (
        r"describe_transactions: (unknown|empty name|empty) \|",
        "a transaction that is not there has -1 for its producer, Kafka says 0",
    ),
    (r"\.subscribed_topic_regex \| Kafka: '' \| Semel: None$", "a member without a pattern has none"),
    (
        r"consumer_group_heartbeat: described as the older kind \|",
        "tools that know only the older kind of group are told of the newer, too",
    ),
    (
        r"consumer_group_heartbeat: commit of the member \| OFFSET_COMMIT v8 \|",
        "version 8 has all that a commit of a member with an epoch needs",
    ),
)
"""A pattern for "scenario: what | API version | field | Kafka: answer | Semel: answer", and why the two differ."""

Brokers = tuple[Sequence[int], dict[ApiKey, list[int]]]


@pytest.fixture(scope="module")
def brokers(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Both brokers' ports, and the versions that both serve."""
    patch = pytest.MonkeyPatch()
    patch.setattr(apache_kafka, "HEAP", ("-Xmx512M", "-Xms256M"))
    patch.setenv("SEMEL_BENCH_DIR", str(tmp_path_factory.mktemp("apache")))
    try:
        kafka_jars.jars()
        with apache_kafka.running_kafka() as kafka:
            ports = (kafka.address[1], int(node.kafka_address.rpartition(":")[2]))

            async def begin() -> dict[ApiKey, list[int]]:
                await asyncio.gather(*(same_answers.prepare(port) for port in ports))
                return await same_answers.served_by_both(ports)

            yield ports, asyncio.run(begin())
    except kafka_jars.JavaMissingError as error:
        pytest.skip(str(error))
    finally:
        patch.undo()


ran: set[str] = set()


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_answers_are_the_same(brokers: Brokers, name: str) -> None:
    ports, versions = brokers
    found = DELIBERATE.others(same_answers.run_versions(name, [[port] for port in ports], versions))
    ran.add(name)
    assert not found, "\n".join(found)


def test_a_trace_context_in_a_requests_header_is_stepped_over(brokers: Brokers) -> None:
    """Semel's producers put one there for nodes that trace; Apache Kafka does not know the tag (KIP-482)."""
    tag = tagged_header(encode_contexts([TraceContext(1, 2)]))
    key, version = ApiKey.METADATA, 12

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            plain = build_request_header(key, version, 7, "test")
            assert plain[-1:] == b"\0"
            body = request_body(key, version, topics=[], allow_auto_topic_creation=False)
            frame = plain[:-1] + tag + body
            writer.write(len(frame).to_bytes(4, "big") + frame)
            return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        finally:
            writer.close()
            await writer.wait_closed()

    for port in brokers[0]:
        correlation_id, _ = parse_response_header(asyncio.run(ask(port)), key, version)
        assert correlation_id == 7


def test_the_table_of_differences_holds() -> None:
    if ran != set(SCENARIOS):
        pytest.skip("not all scenarios ran")
    assert set(DELIBERATE.patterns) == DELIBERATE.matched
