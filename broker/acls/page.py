"""Makes docs/reference/permissions.md: `python -m semel.broker.acls.page > docs/reference/permissions.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.broker.acls.requirements import GRPC, KAFKA, Asked, Asks
from semel.protocol.acls import OPERATIONS

_HEAD: Final = """\
# What each request asks for

This page is made from the table by which a node asks (`broker/acls/requirements.py`). A request that asks for nothing
is answered to everybody who is let in. How rights are given is in [security](../security.md#permissions).

*Instead* means: one of the rights with this resource, or this one, is enough. Who may READ, WRITE, DELETE or ALTER
something may also DESCRIBE it, and ALTER_CONFIGS allows DESCRIBE_CONFIGS. A writer of a
[shared transaction](../shared-transactions.md) asks with its key as the transactional id.

What is refused by name is in the node's log (`denied: ...`); what is left out of a list is not.
"""
_NOTHING: Final = "nothing"


def permissions_page() -> str:
    """Return the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## Operations"
    yield ""
    yield "| With | can be done |"
    yield "|---|---|"
    for resource_type, operations in OPERATIONS.items():
        yield f"| {resource_type.name} | {', '.join(operation.name for operation in operations)} |"
    yield ""
    yield "## The Kafka protocol"
    yield ""
    yield from _table({key.name: asks for key, asks in KAFKA.items()})
    yield ""
    yield "## gRPC (semel.v1)"
    yield ""
    yield from _table(GRPC)
    yield ""


def _table(asks: Mapping[str, Asks]) -> Iterator[str]:
    yield "| Request | asks for | when | without it |"
    yield "|---|---|---|---|"
    for request, rights in sorted(asks.items()):
        if not rights:
            yield f"| {request} | {_NOTHING} | | |"
        for place, right in enumerate(rights):
            yield f"| {request if not place else ''} | {_words(right)} | {right.when} | {right.refused} |"


def _words(right: Asked) -> str:
    return f"{right.operation.name} on {right.resource_type.name}"


if __name__ == "__main__":
    print(permissions_page(), end="")
