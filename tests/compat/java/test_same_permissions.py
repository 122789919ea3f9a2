"""The same requests with the same ACLs to Apache Kafka's authorizer and to a node: each is refused by both, or by none.

Rights on the cluster that Kafka's own node needs, and those that change ACLs, the caller has all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka_jars
import pytest
from kafka_calls import call
from live_node import LiveNode
from permission_cases import CASES, DENIALS, Case, codes
from permitted_node import PERMITTED, acl

from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.protocol.acls import Acl
from semel.protocol.kafka.api import ApiKey

sys.path.append(str(Path(__file__).resolve().parent.parent.parent.parent / "bench"))

import apache_kafka

ALWAYS = (
    acl("ALTER", "cluster"),
    acl("CLUSTER_ACTION", "cluster"),
    *(acl("READ", f"{kind}:*", principal="User:nobody") for kind in ("topic", "group")),
    acl("WRITE", "transactional-id:*", principal="User:nobody"),
)
"""With these an ACL is about everything, so that what no ACL allows is refused."""
HELD = frozenset({("ALTER", "cluster"), ("CLUSTER_ACTION", "cluster"), ("DESCRIBE", "cluster")})
OTHERS_OF_CLUSTER = ("CREATE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    folder = tmp_path_factory.mktemp("permissions")
    with contextlib.ExitStack() as stack:
        try:
            kafka_jars.jars()
        except kafka_jars.JavaMissingError as error:
            pytest.skip(str(error))
        data = stack.enter_context(apache_kafka.data_folder())
        (address,) = apache_kafka.prepare_cluster([data], settings=settings)
        kafka = apache_kafka.start_prepared(data, address)
        stack.callback(kafka.kill)
        permitted = {**PERMITTED, "super_users": "", "allow_everyone_if_no_acl_found": True}
        live = stack.enter_context(LiveNode(folder, **permitted))
        apache_kafka.wait_started(kafka)
        found = {"kafka": address[1], "semel": live.node.kafka_address.port}
        for port in found.values():
            asyncio.run(begin(port))
        yield found


async def begin(port: int) -> None:
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    made = await call(port, ApiKey.CREATE_TOPICS, 5, topics=(topic,), timeout=30_000, validate_only=False)
    assert set(codes(made)) == {0}
    await allow(port, *ALWAYS)


async def allow(port: int, *acls: Acl) -> None:
    creations = tuple(
        {
            "resource_type": each.resource_type,
            "resource_name": each.name,
            "resource_pattern_type": each.pattern,
            "principal": each.principal,
            "host": each.host,
            "operation": each.operation,
            "permission_type": each.permission,
        }
        for each in acls
    )
    assert set(codes(await call(port, ApiKey.CREATE_ACLS, 2, creations=creations))) <= {0}


async def take_back(port: int) -> None:
    anything = {"pattern_type_filter": 1, "principal_filter": "User:ANONYMOUS", "host_filter": None}
    filters = [
        {"resource_type_filter": kind, "resource_name_filter": None, "operation": 1, "permission_type": 1, **anything}
        for kind in (2, 3, 5)
    ]
    filters += [
        {
            "resource_type_filter": 4,
            "resource_name_filter": None,
            "operation": acl(operation, "cluster").operation,
            "permission_type": 1,
            **anything,
        }
        for operation in OTHERS_OF_CLUSTER
    ]
    assert set(codes(await call(port, ApiKey.DELETE_ACLS, 2, filters=tuple(filters)))) <= {0}


async def settled(port: int, values: dict[str, Any], key: ApiKey, version: int, wanted: bool) -> set[int] | None:
    """The codes of an answer, None where the version is not served. Kafka's ACLs count a moment after they are made."""
    found: set[int] = set()
    for _ in range(60):
        try:
            found = set(codes(await call(port, key, version, **values))) - {0}
        except asyncio.IncompleteReadError:
            return None
        if bool(found & DENIALS) is wanted:
            break
        await asyncio.sleep(0.05)
    return found


COMPARED = [
    (key, case)
    for key, case in CASES
    if not HELD & {right for rights in case.enough for right in rights}
    and key is not ApiKey.DELETE_TOPICS
    and "enable2_pc" not in case.values  # which Kafka does not serve yet
]


@pytest.mark.parametrize(("key", "case"), COMPARED, ids=lambda value: value.name if isinstance(value, ApiKey) else "")
def test_S7_what_a_right_is_asked_for_is_the_same(ports: dict[str, int], key: ApiKey, case: Case) -> None:
    (api,) = [each for each in ALL_APIS if each.key is key]
    versions = case.versions or range(api.min_version, api.max_version + 1)

    async def main() -> None:
        compared = 0
        for version in versions:
            answers: dict[str, list[set[int] | None]] = {}
            for name, port in ports.items():
                await take_back(port)
                answers[name] = [await settled(port, case.values, key, version, True)]
                for enough in case.enough:
                    await take_back(port)
                    await allow(port, *(acl(*right) for right in enough))
                    after = await settled(port, case.values, key, version, False)
                    answers[name].append(None if after is None else after & DENIALS)
            if answers["kafka"][0] is not None:
                compared += 1
                assert answers["kafka"] == answers["semel"], version
        assert compared

    asyncio.run(main())
