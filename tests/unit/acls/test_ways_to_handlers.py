"""S7: both listeners reach what changes or tells something through `broker/permitted/`, which asks for rights."""

from __future__ import annotations

import ast
import re
from pathlib import Path

BROKER = Path(__file__).parents[3] / "broker"
LISTENERS = (*(BROKER / "listeners/kafka/apis").glob("*.py"), *(BROKER / "listeners/grpc").glob("*_service.py"))
HARMLESS = {
    "add_partitions_to_txn.py": {"add_partitions"},  # of nodes, who have CLUSTER_ACTION
    "delegation_tokens.py": {"tokens_of"},  # what makes HMACs, of tokens that may be told
    "describe_producers.py": {"partition_of"},  # behind a check of the topic
    "write_txn_markers.py": {"abort_as_asked"},  # behind a check of the cluster
    "create_topics.py": {"topic_entries"},  # behind a check of the topic
    "describe_configs.py": {"know_topics"},
    "topic_service.py": {"know_topics"},
    "describe_cluster.py": {"metadata"},  # the nodes, which everybody may know
    "metadata.py": {"metadata"},
    "metadata_service.py": {"metadata"},
    "topic_values.py": {"fenced_nodes"},
    "data_service.py": {"FetchHandler", "ProduceHandler", "LargeFetch", "WaitingFetch"},  # with rights
}
"""What they may import of handlers, besides plain values."""
VALUES = {"MorePartitions", "PartitionSize", "UNKNOWN_OFFSET", "Outcomes"}


def test_S7_listeners_reach_handlers_through_what_asks_for_rights() -> None:
    assert len(LISTENERS) > 50
    for path in LISTENERS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and re.match(
                r"semel\.broker\.(handlers|diagnostics)", node.module or ""
            ):
                names = {alias.name for alias in node.names} - VALUES
                assert names <= HARMLESS.get(path.name, set()), path


def test_S7_listeners_reach_coordinators_through_what_asks_for_rights() -> None:
    """But for the place of a key, and for the verification of nodes."""
    for path in LISTENERS:
        called = set(re.findall(r"\.(?:groups|transactions)\.(\w+)\(", path.read_text()))
        permitted = {"offsets_partition", "partition_for", "topic_ready"}
        if path.name == "add_partitions_to_txn.py":
            permitted.add("verify")
        # Calls of the modules in broker/permitted/ of the same names give rights along.
        text = path.read_text()
        called = {name for name in called if re.search(rf"node\.(?:groups|transactions)\.{name}\(", text)}
        assert called <= permitted, path
