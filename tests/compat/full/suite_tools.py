"""As much of Kafka's tools as the suites call: they make, grow, delete and list topics, change ACLs, and add users.

A suite calls them by a script of Kafka's name (`write_tools`), which knows the node and who may do everything there.
Where a command has settings of its own (`--command-config`), it goes by those.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

TIMEOUT_S: Final = 30
ITERATIONS: Final = 4096
TOOLS: Final = ("topics", "acls", "configs")
RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
"""librdkafka calls the cluster a broker."""
OPERATIONS: Final = {each.name.replace("_", ""): each for each in AclOperation}
JAAS: Final = re.compile(r'(username|password)="([^"]*)"')
SCRAM: Final = re.compile(r"(SCRAM-SHA-\d+)=\[(?:iterations=\d+,)?password=([^\]]*)\]")


def write_tools(folder: Path, settings: Mapping[str, str], jars: Path | None = None) -> Path:
    """Make a folder like Kafka's own: its `bin` has the tools, and `libs` Kafka's jars, where they are given.

    settings: of a client that reaches the node and may do everything there, as librdkafka names them
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    kept = folder / "client.json"
    kept.write_text(json.dumps(dict(settings)))
    commands = {f"kafka-{tool}.sh": f'"{sys.executable}" -P "{__file__}" {tool} "{kept}" "$@"' for tool in TOOLS}
    if jars is not None:
        commands["kafka-run-class.sh"] = f'java -cp "$CLASSPATH:{folder}/libs/*" "$@"'
        if not (folder / "libs").exists():
            (folder / "libs").symlink_to(jars)
    for name, command in commands.items():
        tool = folder / "bin" / name
        tool.write_text(f"#!/bin/sh\nexec env -u LD_PRELOAD -u LD_LIBRARY_PATH -u PYTHONPATH {command}\n")
        tool.chmod(0o755)
    return folder


def main(words: Sequence[str] | None = None) -> None:
    tool, settings, *rest = sys.argv[1:] if words is None else words
    {"topics": topics, "acls": acls, "configs": configs}[tool](json.loads(Path(settings).read_text()), rest)


def parser_of(*actions: str) -> argparse.ArgumentParser:
    """Return a parser of what all tools have."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--bootstrap-server", "--command-config"):
        parser.add_argument(name)
    action = parser.add_mutually_exclusive_group(required=True)
    for name in actions:
        action.add_argument(f"--{name}", action="store_const", const=name, dest="action")
    return parser


def admin_of(settings: Mapping[str, str], options: argparse.Namespace) -> AdminClient:
    if options.command_config is None:
        return AdminClient(dict(settings))
    lines = Path(options.command_config).read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    login = {f"sasl.{name}": value for name, value in JAAS.findall(given.pop("sasl.jaas.config", ""))}
    return AdminClient({"bootstrap.servers": options.bootstrap_server, **given, **login})


def topics(settings: Mapping[str, str], words: Sequence[str]) -> None:
    parser = parser_of("create", "alter", "delete", "list")
    parser.add_argument("--topic")
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[])
    options = parser.parse_args(words)
    admin = admin_of(settings, options)
    asked: dict[str, Future[None]]
    if options.action == "list":
        print("\n".join(sorted(admin.list_topics(timeout=TIMEOUT_S).topics)))
        return
    if options.action == "create":
        config = dict(pair.split("=", 1) for pair in options.config)
        topic = NewTopic(options.topic, options.partitions, options.replication_factor, config=config)
        asked = admin.create_topics([topic], operation_timeout=TIMEOUT_S)
    elif options.action == "alter":
        asked = admin.create_partitions([NewPartitions(options.topic, options.partitions)], operation_timeout=TIMEOUT_S)
    else:
        asked = admin.delete_topics([options.topic], operation_timeout=TIMEOUT_S)
    asked[options.topic].result(TIMEOUT_S)


def acls(settings: Mapping[str, str], words: Sequence[str]) -> None:
    parser = parser_of("add", "remove", "list")
    parser.add_argument("--force", action="store_true", help="nothing is asked anyway")
    parser.add_argument("--authorizer-properties", help="where old Kafka has ACLs; the node is known")
    parser.add_argument("--cluster", action="store_const", const="kafka-cluster")
    for name in ("topic", "group", "transactional-id", "principal"):
        parser.add_argument(f"--{name}")
    for kind in ("allow", "deny"):
        parser.add_argument(f"--{kind}-principal")
        parser.add_argument(f"--{kind}-host", default="*")
    parser.add_argument("--operation", default="All")
    options = parser.parse_args(words)
    admin = admin_of(settings, options)
    if options.action == "list":
        wanted = acl_filter(ResourceType.ANY, None, options.principal, AclOperation.ANY, AclPermissionType.ANY)
        print("\n".join(map(str, admin.describe_acls(wanted).result(TIMEOUT_S))))
        return
    operation = OPERATIONS[options.operation.upper().replace("_", "")]
    allows = options.allow_principal is not None
    principal = options.allow_principal if allows else options.deny_principal
    host = options.allow_host if allows else options.deny_host
    permission = AclPermissionType.ALLOW if allows else AclPermissionType.DENY
    asked: list[Future[Any]] = []
    for name, kind in RESOURCES.items():
        resource = getattr(options, name)
        if resource is None:
            continue
        if options.action == "add":
            literal = ResourcePatternType.LITERAL
            binding = AclBinding(kind, resource, literal, principal, host, operation, permission)
            asked += admin.create_acls([binding]).values()
        else:
            asked += admin.delete_acls([acl_filter(kind, resource, principal, operation, permission, host)]).values()
    if not asked:
        parser.error("no resource is given")
    for each in asked:
        each.result(TIMEOUT_S)


def acl_filter(
    kind: ResourceType,
    resource: str | None,
    principal: str | None,
    operation: AclOperation,
    permission: AclPermissionType,
    host: str | None = None,
) -> AclBindingFilter:
    pattern = ResourcePatternType.ANY if resource is None else ResourcePatternType.LITERAL
    return AclBindingFilter(kind, resource, pattern, principal, host, operation, permission)


def configs(settings: Mapping[str, str], words: Sequence[str]) -> None:
    parser = parser_of("alter")
    parser.add_argument("--zookeeper", help="where old Kafka has users; the node is known")
    parser.add_argument("--add-config", required=True)
    parser.add_argument("--entity-type", choices=["users"], required=True)
    parser.add_argument("--entity-name", required=True)
    options = parser.parse_args(words)
    credentials = [
        UserScramCredentialUpsertion(
            options.entity_name,
            ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], ITERATIONS),
            password.encode(),
        )
        for mechanism, password in SCRAM.findall(options.add_config)
    ]
    if not credentials:
        parser.error("--add-config has no SCRAM-SHA-256=[password=...]")
    admin = admin_of(settings, options)
    for each in credentials:  # a user is altered once in a request
        admin.alter_user_scram_credentials([each])[options.entity_name].result(TIMEOUT_S)


if __name__ == "__main__":
    main()
