"""What a decision about a right takes, and what it takes until new ACLs count: without a node.

python -P bench/permissions.py [--acls 10000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import random
import timeit
from collections.abc import Callable
from dataclasses import dataclass

from semel.broker.acls.authorizer import Authorizer
from semel.broker.acls.decision import AclSet
from semel.broker.audit.log import Audit
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.protocol.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType

USERS, HOST = 50, "10.0.0.1"
OPERATIONS = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
DECISIONS = 20_000


@dataclass
class Image:
    acls: frozenset[Acl]


@dataclass
class Source:
    image: Image


def made(count: int) -> frozenset[Acl]:
    """Return ACLs of many users, half of them for prefixes."""
    draw = random.Random(7)
    acls: set[Acl] = set()
    while len(acls) < count:
        pattern = draw.choice((PatternType.LITERAL, PatternType.PREFIXED))
        name, user = f"team-{draw.randrange(40)}-topic-{draw.randrange(3 * count)}", f"User:u{draw.randrange(USERS)}"
        acls.add(Acl(ResourceType.TOPIC, name, pattern, user, "*", draw.choice(OPERATIONS), AclPermission.ALLOW))
    return frozenset(acls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acls", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()}")
    acls = made(arguments.acls)
    found = AclSet(acls)
    config = NodeConfig(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin")
    access = Authorizer(config, Source(Image(acls)), Audit(1)).access("User:u1", HOST)
    assert access is not None
    topic, read, name = ResourceType.TOPIC, AclOperation.READ, "team-7-topic-123"

    def best_us(call: Callable[[], object], times: int) -> float:
        return min(timeit.repeat(call, number=times, repeat=arguments.rounds)) / times * 1e6

    decided = best_us(lambda: found.allows("User:u1", HOST, read, topic, name), DECISIONS)
    remembered = best_us(lambda: access.may(read, topic, name), DECISIONS)
    again = best_us(lambda: AclSet(acls), 1)
    print(f"{'a decision, us':40} {decided:10.2f}")
    print(f"{'one that was made before, us':40} {remembered:10.2f}")
    print(f"{'until changed ACLs count, ms':40} {again / 1000:10.1f}")


if __name__ == "__main__":
    main()
