"""Replicas are throttled once every node knows the settings."""

from __future__ import annotations

import pytest

from semel.broker.controller.throttles import check_may_throttle
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.errors import ErrorCode, SemelError


def image(version: int) -> MetadataImage:
    values = {name: getattr(EMPTY_IMAGE, name) for name in MetadataImage.__slots__}
    return MetadataImage(**values | {"version": version})


@pytest.mark.parametrize("name", ["leader.replication.throttled.rate", "follower.replication.throttled.replicas"])
def test_nobody_is_throttled_while_an_older_node_would_not_read_its_topic(name: str) -> None:
    check_may_throttle(image(2), [name])
    check_may_throttle(image(1), ["retention.ms"])
    with pytest.raises(SemelError, match="Upgrade all nodes first") as refused:
        check_may_throttle(image(1), ["retention.ms", name])
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
