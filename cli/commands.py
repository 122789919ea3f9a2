"""Which commands `semel` has, where each lives, and what is said of it. A client install has this too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROGRAM: Final = (
    "Semel: a transactional log in Kafka's formats: each record is written, and takes effect, exactly once."
)
EPILOG: Final = "`semel COMMAND --help` has the options of a command, and examples."

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "semel.cli.serve",
    "http": "semel.cli.http",
    "schema": "semel.cli.schema",
    "topic": "semel.cli.topic",
    "produce": "semel.cli.produce",
    "consume": "semel.cli.consume",
    "export": "semel.cli.exports.export",
    "import": "semel.cli.exports.importing",
    "group": "semel.cli.group",
    "txn": "semel.cli.txn",
    "doctor": "semel.cli.doctor",
    "top": "semel.cli.top",
    "cluster": "semel.cli.cluster",
    "node": "semel.cli.node",
    "partition": "semel.cli.partition",
    "user": "semel.cli.user",
    "token": "semel.cli.token",
    "acl": "semel.cli.acl",
    "quota": "semel.cli.quota",
    "log": "semel.cli.log",
    "metadata": "semel.cli.metadata",
    "health": "semel.cli.health",
    "bench": "semel.cli.bench.command",
    "completion": "semel.cli.completion.command",
    "demo": "semel.cli.demo.command",
}
"""Each module has `app`, a `typer.Typer`: one command, or a group of them."""

SUMMARIES: Final[Mapping[str, str]] = {
    "serve": "Run a node until SIGTERM or SIGINT (Ctrl-C).",
    "http": "Serve HTTP for a log: REST, a schema registry with Confluent's API, and a console for browsers.",
    "schema": "List, show, register, check and delete schemas in a schema registry.",
    "topic": "Create, list, describe, configure and delete topics, and add partitions to them.",
    "produce": "Send records from files or standard input. Ends when all of them are durable.",
    "consume": "Print records as they arrive, until interrupted. With a group, what was printed is committed.",
    "export": "Write a topic to Parquet or JSON lines, each record once; repeated, what has come since.",
    "import": "Send what `semel export` has written to a topic, each record once.",
    "group": "List and describe groups, show their lag, reset their offsets, and delete them.",
    "txn": "List and inspect transactions, and abort or finish those that block readers.",
    "doctor": "Check nodes, transactions, groups, partitions, disks and settings, and say how to fix what is wrong.",
    "top": "Show what a cluster does now, and refresh it: traffic, open transactions, lag, disks and replication.",
    "cluster": "Show the nodes of a cluster, what is behind, and what to do next; and balance it.",
    "node": "List the nodes of a cluster, keep new replicas away from one, empty it, and remove it.",
    "partition": "Move replicas to other nodes, and have other replicas lead.",
    "user": "Add, change, remove and list the users that a node serves, in the cluster or in a file.",
    "token": "Create, list, renew and expire delegation tokens, which programs log in with as their owner.",
    "acl": "Add, list and remove ACLs: who may do what with which topics, groups and transactional ids.",
    "quota": "Set, list and remove client quotas: how much of each node a user, client id or address may take.",
    "log": "Print and check the files of a node's data directory, or of a remote storage. No node is needed.",
    "metadata": "Move the metadata of a node to a database that other nodes can use.",
    "health": "Ask a node once whether it is ready, and answer by the exit code: for containers and service managers.",
    "bench": "Measure how fast a node, or a Kafka broker, takes and returns records.",
    "completion": "Print a script that completes commands, options, topics and groups in your shell.",
    "demo": "Run an exactly-once pipeline over real flights while its processes and the node are killed.",
}
"""What `semel --help` says of each, as the command's own help begins, so that it does not load them all."""
