"""Apache Kafka's command-line tools, unchanged, against a node: what they print, and how they fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_tools import Done, KafkaTools

import semel
from semel.cli.demo.processes import NodeProcess

Run = Callable[..., Done]
Program = Callable[..., list[str]]


@pytest.fixture
def run(node: NodeProcess, tools: KafkaTools) -> Run:
    """Run a tool against the node."""

    def run(tool: str, *arguments: str, **more: str) -> Done:
        return tools.run(tool, "--bootstrap-server", node.kafka_address, *arguments, **more)

    return run


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with three partitions and ten records in each."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    with semel.Admin(node.bootstrap) as admin, semel.Producer(node.bootstrap) as producer:
        admin.create_topic(name, partitions=3)
        for n in range(30):
            producer.send(name, f"value {n}", partition=n % 3, timestamp_ms=1_000 * n)
    return name


def test_admin_client(node: NodeProcess, java_program: Program) -> None:
    steps = java_program("AdminCalls", node.kafka_address)
    assert steps == ["cluster", "topics", "configs", "records", "groups", "transactions", "deletion"]


def test_broker_api_versions(run: Run) -> None:
    done = run("broker-api-versions").succeeded()
    served = dict(re.findall(r"^\s(\w+)\(\d+\): (.*?),?$", done.output, re.MULTILINE))
    missing = {name for name, versions in served.items() if versions == "UNSUPPORTED"}
    assert not missing & {
        *("Produce", "Fetch", "ListOffsets", "Metadata", "FindCoordinator", "CreateTopics", "DeleteTopics"),
        *("OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "DescribeGroups"),
        *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
        *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "DescribeConfigs", "IncrementalAlterConfigs"),
    }
    assert not [name for name, versions in served.items() if "unusable" in versions]


def test_topics(run: Run, topic: str) -> None:
    made = run("topics", "--create", "--topic", f"{topic}-made", "--partitions", "2", "--config", "retention.ms=1000")
    assert made.succeeded().output.startswith(f"Created topic {topic}-made.")
    again = run("topics", "--create", "--topic", f"{topic}-made")
    assert again.code == 1
    assert "exists" in again.output
    assert {topic, f"{topic}-made"} <= set(run("topics", "--list").succeeded().lines())
    run("topics", "--alter", "--topic", f"{topic}-made", "--partitions", "4").succeeded()
    fewer = run("topics", "--alter", "--topic", f"{topic}-made", "--partitions", "1")
    assert fewer.code == 1
    described = run("topics", "--describe", "--topic", f"{topic}-made").succeeded()
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 1\s+Configs: .*\bretention.ms=1000\b", described.output)
    assert re.findall(r"Partition: (\d)\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described.output) == list("0123")
    assert not run("topics", "--describe", "--under-replicated-partitions").succeeded().lines()
    run("topics", "--delete", "--topic", f"{topic}-made").succeeded()
    assert f"{topic}-made" not in run("topics", "--list").succeeded().lines()
    absent = run("topics", "--describe", "--topic", "absent")
    assert absent.code == 1
    assert "does not exist" in absent.output


def test_configs(run: Run, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run("configs", *entity, "--alter", "--add-config", "retention.ms=60000,cleanup.policy=[compact,delete]").succeeded()
    described = run("configs", *entity, "--describe").succeeded().output
    assert re.search(
        r"retention\.ms=60000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention.ms=60000", described
    )
    assert "cleanup.policy=compact,delete" in described
    run("configs", *entity, "--alter", "--delete-config", "retention.ms").succeeded()
    assert "retention.ms" not in run("configs", *entity, "--describe").succeeded().output
    wrong = run("configs", *entity, "--alter", "--add-config", "retention.ms=soon")
    assert wrong.code == 1
    assert "retention.ms" in wrong.errors + wrong.output
    everything = run("configs", *entity, "--describe", "--all").succeeded().output
    assert "segment.bytes=" in everything
    assert (
        "segment.bytes"
        in run("configs", "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all").output
    )


def test_get_offsets_and_delete_records(run: Run, topic: str, tmp_path: Path) -> None:
    assert run("get-offsets", "--topic", topic).succeeded().lines() == [f"{topic}:{n}:10" for n in range(3)]
    at_time = run("get-offsets", "--topic", topic, "--time", "15000").succeeded().lines()
    assert at_time == [f"{topic}:{n}:5" for n in range(3)]
    newest = run("get-offsets", "--topic", topic, "--time", "max-timestamp").succeeded().lines()
    assert newest == [f"{topic}:{n}:9" for n in range(3)]
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 1, "offset": 4}]}
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    deleted = run("delete-records", "--offset-json-file", str(tmp_path / "wanted.json")).succeeded()
    assert f"partition: {topic}-1\tlow_watermark: 4" in deleted.output
    earliest = run("get-offsets", "--topic", topic, "--time", "earliest").succeeded().lines()
    assert earliest == [f"{topic}:0:0", f"{topic}:1:4", f"{topic}:2:0"]


def test_log_dirs(run: Run, topic: str) -> None:
    done = run("log-dirs", "--describe", "--topic-list", topic).succeeded()
    described = json.loads(next(line for line in done.lines() if line.startswith("{")))
    (broker,) = described["brokers"]
    partitions = {one["partition"]: one["size"] for folder in broker["logDirs"] for one in folder["partitions"]}
    assert sorted(partitions) == [f"{topic}-{n}" for n in range(3)]
    assert all(size > 0 for size in partitions.values())


def test_features_and_cluster(run: Run, node: NodeProcess, tools: KafkaTools) -> None:
    assert re.search(
        r"Feature: transaction.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s+FinalizedVersionLevel: 2",
        run("features", "describe").succeeded().output,
    )
    for change, code in (("upgrade", 0), ("downgrade", 1)):
        level = 2 if change == "upgrade" else 1
        done = run("features", change, "--feature", f"transaction.version={level}")
        assert (done.code != 0) == bool(code), done.output
    assert "stays at level 2" in done.output
    cluster = tools.run("cluster", "cluster-id", "--bootstrap-server", node.kafka_address).succeeded()
    assert re.search(r"^Cluster ID: \S+$", cluster.output, re.MULTILINE)


def test_metadata_quorum_and_settings_of_all_nodes(run: Run) -> None:
    status = run("metadata-quorum", "describe", "--status").succeeded().output
    assert re.search(r"^LeaderId:\s+1$", status, re.MULTILINE), status
    assert re.search(r"^MaxFollowerLag:\s+0$", status, re.MULTILINE), status
    all_nodes = ("--entity-type", "brokers", "--entity-default")
    run("configs", "--alter", *all_nodes, "--add-config", "log.cleaner.backoff.ms=777").succeeded()
    assert "log.cleaner.backoff.ms=777" in run("configs", "--describe", *all_nodes).succeeded().output


def test_console_and_groups(run: Run, topic: str) -> None:
    read = ("--topic", topic, "--group", topic, "--from-beginning", "--max-messages", "30", "--timeout-ms", "60000")
    values = run("console-consumer", *read).succeeded().lines()
    assert sorted(values) == sorted(f"value {n}" for n in range(30))
    assert topic in run("consumer-groups", "--list").succeeded().lines()
    described = run("consumer-groups", "--describe", "--group", topic).succeeded()
    rows = re.findall(rf"^{topic}\s+{topic}\s+(\d)\s+(\S+)\s+(\S+)\s+(\S+)", described.output, re.MULTILINE)
    assert sorted(rows) == [(str(n), "10", "10", "0") for n in range(3)]
    state = run("consumer-groups", "--describe", "--group", topic, "--state").succeeded().output
    assert re.search(rf"{topic}\s.*\sEmpty\s", state)
    reset = ("--reset-offsets", "--group", topic, "--topic", topic)
    run("consumer-groups", *reset, "--to-offset", "4", "--execute").succeeded()
    described = run("consumer-groups", "--describe", "--group", topic).succeeded()
    assert sorted(re.findall(rf"^{topic}\s+{topic}\s+(\d)\s+(\d+)", described.output, re.MULTILINE)) == [
        (str(n), "4") for n in range(3)
    ]
    run("consumer-groups", *reset, "--to-datetime", "1970-01-01T00:00:15.000", "--dry-run").succeeded()
    run("consumer-groups", "--delete-offsets", "--group", topic, "--topic", topic).succeeded()
    run("consumer-groups", "--delete", "--group", topic).succeeded()
    assert topic not in run("consumer-groups", "--list").succeeded().lines()


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_group_with_members(run: Run, tools: KafkaTools, node: NodeProcess, topic: str, group_protocol: str) -> None:
    address = ("--bootstrap-server", node.kafka_address)
    arguments = ("--topic", topic, "--group", topic, "--consumer-property", f"group.protocol={group_protocol}")
    with tools.running("console-consumer", *address, *arguments, "--from-beginning") as reader:
        assert reader.stdout is not None
        seen = [line for _, line in zip(range(30), (x for x in reader.stdout if x.startswith("value")), strict=False)]
        assert len(seen) == 30
        members = run("consumer-groups", "--describe", "--group", topic, "--members", "--verbose").succeeded().output
        assert re.search(rf"{topic}\s.*\s3\s.*{topic}(:0,1,2|\(0,1,2\))", members), members
        state = run("consumer-groups", "--describe", "--group", topic, "--state").succeeded().output
        assert re.search(r"\sStable\s", state)
        refused = run("consumer-groups", "--delete", "--group", topic)
        assert "GroupNotEmptyException" in refused.output + refused.errors
        if tools.has("groups"):
            listed = run("groups", "--list").succeeded().output
            assert re.search(rf"{topic}\s+{group_protocol.capitalize()}\s+consumer", listed), listed


def test_transactions(run: Run, node: NodeProcess, topic: str) -> None:
    with semel.Producer(node.bootstrap, transactional_id="hanging") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(30)
        listed = run("transactions", "list").succeeded().output
        assert re.search(r"^hanging\s+1\s+\d+\s+Ongoing", listed, re.MULTILINE)
        described = run("transactions", "describe", "--transactional-id", "hanging").succeeded().output
        assert re.search(rf"hanging\s.*Ongoing.*{topic}-1", described)
        producers = run("transactions", "describe-producers", "--topic", topic, "--partition", "1").succeeded().output
        assert re.search(r"^\d+\s+\d+\s+.*\s10\s*$", producers, re.MULTILINE), producers
        run("transactions", "abort", "--topic", topic, "--partition", "1", "--start-offset", "10").succeeded()
        producers = run("transactions", "describe-producers", "--topic", topic, "--partition", "1").succeeded().output
        assert "None" in producers
        # The coordinator itself has aborted it (S1): the tool does not write markers past it.
        listed = run("transactions", "list").succeeded().output
        assert re.search(r"^hanging\s+1\s+\d+\s+CompleteAbort", listed, re.MULTILINE)
        with pytest.raises(semel.FencedError):
            producer.commit_transaction()
    again = run("transactions", "abort", "--topic", topic, "--partition", "1", "--start-offset", "10")
    assert again.code != 0
    committed = ("--topic", topic, "--partition", "1", "--from-beginning", "--timeout-ms", "3000")
    done = run("console-consumer", *committed, "--isolation-level", "read_committed")
    assert done.lines() == [f"value {n}" for n in range(1, 30, 3)]


def test_perf_tests(run: Run, topic: str) -> None:
    made = run("producer-perf-test", *f"--topic {topic} --num-records 50000 --record-size 100 --throughput -1".split())
    assert "50000 records sent" in made.succeeded().output
    fields = run("consumer-perf-test", "--topic", topic, "--num-records", "50000").succeeded().lines()[-1].split(", ")
    assert int(fields[4]) >= 50_000
    transactional = f"--topic {topic} --num-records 2000 --record-size 100 --throughput -1 --transaction-duration-ms 50"
    made = run("producer-perf-test", *transactional.split(), "--transactional-id", "perf")
    assert "2000 records sent" in made.succeeded().output


def test_quotas_of_users_clients_and_addresses(run: Run) -> None:
    def configs(*words: str) -> str:
        return run("configs", *words).succeeded().output

    pair = ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default")
    configs(*pair, "--alter", "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
    configs("--entity-type", "clients", "--entity-name", "etl", "--alter", "--add-config", "controller_mutation_rate=3")
    configs("--entity-type", "ips", "--entity-default", "--alter", "--add-config", "connection_creation_rate=5000")
    described = configs(*pair, "--describe")
    assert "producer_byte_rate=1048576.0" in described
    assert "request_percentage=12.5" in described
    assert "controller_mutation_rate=3.0" in configs("--entity-type", "clients", "--describe")
    assert "connection_creation_rate=5000.0" in configs("--entity-type", "ips", "--describe")
    configs(*pair, "--alter", "--delete-config", "producer_byte_rate,request_percentage")
    configs("--entity-type", "ips", "--entity-default", "--alter", "--delete-config", "connection_creation_rate")
    assert "producer_byte_rate" not in configs(*pair, "--describe")
    refused = run("configs", *pair, "--alter", "--add-config", "producer_byte_rate=-1")
    assert refused.code != 0
    configs(
        "--entity-type", "clients", "--entity-name", "etl", "--alter", "--delete-config", "controller_mutation_rate"
    )


def test_acls_say_that_there_is_no_authorizer(run: Run) -> None:
    refused = run("acls", "--list")
    assert "SecurityDisabledException" in refused.output + refused.errors
