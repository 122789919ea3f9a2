"""Settings of newer versions are given once every node knows them."""

from __future__ import annotations

import pytest

from semel.broker.controller.newer_settings import check_all_know
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.errors import ErrorCode, SemelError


def image(version: int) -> MetadataImage:
    values = {name: getattr(EMPTY_IMAGE, name) for name in MetadataImage.__slots__}
    return MetadataImage(**values | {"version": version})


@pytest.mark.parametrize(
    ("name", "since"),
    [
        ("leader.replication.throttled.rate", 2),
        ("follower.replication.throttled.replicas", 2),
        ("remote.storage.enable", 7),
        ("log.local.retention.bytes", 7),
    ],
)
def test_no_setting_is_given_that_an_older_node_would_not_read(name: str, since: int) -> None:
    check_all_know(image(since), [name])
    check_all_know(image(since - 1), ["retention.ms"])
    with pytest.raises(SemelError, match="Upgrade all nodes first") as refused:
        check_all_know(image(since - 1), ["retention.ms", name])
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
