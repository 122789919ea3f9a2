"""Which replicas a topic's settings throttle, as Kafka reads them."""

from __future__ import annotations

import pytest

from semel.broker.log.throttled_replicas import ALL_REPLICAS, NO_REPLICAS, ThrottledReplicas
from semel.protocol.errors import ErrorCode, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", NO_REPLICAS),
        ("*", ALL_REPLICAS),
        (" * ", ALL_REPLICAS),
        ("0:1", ThrottledReplicas(pairs=frozenset({(0, 1)}))),
        ("0:1, 12:3,,0:1", ThrottledReplicas(pairs=frozenset({(0, 1), (12, 3)}))),
    ],
)
def test_a_list_of_replicas_or_all_of_them(text: str, expected: ThrottledReplicas) -> None:
    assert ThrottledReplicas.parse("s", text) == expected


@pytest.mark.parametrize("text", ["0", "0:", ":1", "a:1", "0:-1", "0:1:2", "0:1,*", "*,*", "none", "\u0661:1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"use PARTITION:NODE,PARTITION:NODE,\.\.\. or \* alone") as refused:
        ThrottledReplicas.parse("leader.replication.throttled.replicas", text)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
