"""Names that a node has, for completion: within a moment, and in silence where it does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from semel.sdk.admin.api import Admin

CONNECT_MS: Final = 700
ANSWER_MS: Final = 1_500
NAMES_MAX: Final = 2_000


def names_of(kind: str, bootstrap: str) -> Sequence[str]:
    """Return the names of a kind, which a metavar says; none for other kinds, and where no node answers."""
    ask = _KINDS.get(kind)
    if ask is None:
        return []
    import semel  # heavy, and not needed for most words

    logging.disable(logging.CRITICAL)
    try:
        with semel.Admin(
            bootstrap,
            client_id="semel-completion",
            connect_timeout_ms=CONNECT_MS,
            api_timeout_ms=ANSWER_MS,
            request_timeout_ms=ANSWER_MS,
        ) as admin:
            return ask(admin)[:NAMES_MAX]
    except semel.SemelError:
        return []
    finally:
        logging.disable(logging.NOTSET)


def _topics(admin: Admin) -> list[str]:
    return sorted(topic.name for topic in admin.topics())


def _partitions(admin: Admin) -> list[str]:
    topics = sorted(admin.topics(), key=lambda topic: topic.name)
    return [f"{topic.name}:{place.partition}" for topic in topics for place in topic.partitions]


def _groups(admin: Admin) -> list[str]:
    return sorted(group.group_id for group in admin.groups())


def _transactional_ids(admin: Admin) -> list[str]:
    return sorted(each.transactional_id for each in admin.transactions())


_KINDS: Final[Mapping[str, Callable[[Admin], list[str]]]] = {
    "TOPIC": _topics,
    "TOPIC:PARTITION": _partitions,
    "GROUP": _groups,
    "NAME": _transactional_ids,
    "TRANSACTIONAL_ID": _transactional_ids,
}
