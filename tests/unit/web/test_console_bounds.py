"""Pages of large clusters: so many calls and so many rows, however much there is. The answers are made up."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from console_client import ConsoleClient
from http_gateway import HttpGateway

from semel.protocol.api.groups import FetchedOffset, GroupDescription, GroupListing
from semel.protocol.api.topics import ListOffset, PartitionDescription, TopicDescription
from semel.protocol.api.transactions import TransactionListing
from semel.protocol.ids import TopicPartition
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes
from semel.sdk.admin.core import GroupListings, PartitionLag, TransactionListings
from semel.sdk.admin.rates import Flow
from semel.sdk.diagnosis.findings import Cluster, Diagnosis
from semel.web.console.paging import ROWS, page_of
from semel.web.console.sampler import KEPT, TOPICS_MAX, Sampler, sample_of

PARTITIONS = 10_000
GROUPS = 1_000
PAGE_BYTES_MAX = 100_000


class MadeUpAdmin:
    """Answers as a large cluster would, and counts what it is asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.asked_offsets = 0
        places = tuple(PartitionDescription(number, 1, 1, (1,), (1,)) for number in range(PARTITIONS))
        self._wide = TopicDescription("wide", uuid.UUID(int=7), False, places)  # type: ignore[arg-type]
        self._many = [
            TopicDescription(f"t{number:05}", uuid.UUID(int=7), False, places[:1])  # type: ignore[arg-type]
            for number in range(PARTITIONS)
        ]

    async def topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        self.calls["topics"] += 1
        return [self._wide, *self._many]

    async def topic(self, name: str) -> TopicDescription:
        self.calls["topic"] += 1
        return self._wide

    async def look_up_offsets(
        self, timestamps: Mapping[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, ListOffset]:
        self.calls["look_up_offsets"] += 1
        self.asked_offsets += len(timestamps)
        return {tp: ListOffset(0, 0) for tp in timestamps}

    async def groups(self, *, states: Iterable[str] = ()) -> GroupListings:
        self.calls["groups"] += 1
        return GroupListings([GroupListing(f"g{number}", "consumer", "Stable") for number in range(GROUPS)])

    async def group(self, group: str) -> GroupDescription:
        self.calls["group"] += 1
        return GroupDescription(group, "Empty", "consumer", "", 1, "", ())

    async def group_offsets(self, group: str) -> dict[TopicPartition, FetchedOffset]:
        self.calls["group_offsets"] += 1
        return {TopicPartition("wide", number): FetchedOffset(1, 1, "") for number in range(PARTITIONS)}

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, ListOffset]:
        self.calls["list_offsets"] += 1
        return {tp: ListOffset(9, 0) for tp in timestamps}

    async def look_up_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        self.calls["look_up_lag"] += 1
        return {TopicPartition("wide", number): PartitionLag(1, 9, 8) for number in range(PARTITIONS)}

    async def transactions(self, **_: object) -> TransactionListings:
        self.calls["transactions"] += 1
        return TransactionListings(
            [TransactionListing(f"x{number}", number, "Ongoing") for number in range(PARTITIONS)]
        )

    async def nodes(self) -> list[Any]:
        self.calls["nodes"] += 1
        return []

    async def replicas(self) -> ReplicasOfNodes:
        return ReplicasOfNodes({}, {})

    async def diagnose(self, **_: object) -> Diagnosis:
        self.calls["diagnose"] += 1
        return Diagnosis(Cluster(()), ())


@pytest.fixture
def admin() -> MadeUpAdmin:
    return MadeUpAdmin()


@pytest.fixture
def console(admin: MadeUpAdmin) -> Iterator[ConsoleClient]:
    async def close() -> None:
        pass

    with_gateway = HttpGateway("localhost:1", allows_changes=True)
    with_gateway.gateway.own = SimpleNamespace(admin=lambda: admin, close=close)  # type: ignore[assignment]
    with with_gateway as gateway:
        yield ConsoleClient(gateway.address)


@pytest.mark.parametrize(
    ("path", "calls"),
    [
        ("topics?page=3", {"topics": 1}),
        ("topic?name=wide&page=200", {"topic": 1, "look_up_offsets": 3}),
        ("groups?page=20", {"groups": 1}),
        ("group?id=g&page=7", {"group": 1, "look_up_lag": 1, "group_offsets": 1}),
        ("transactions?page=2", {"transactions": 1, "diagnose": 1}),
        ("", {"topics": 1, "nodes": 1, "diagnose": 1}),
    ],
)
def test_a_page_of_much_takes_few_calls_and_has_few_rows(
    console: ConsoleClient, admin: MadeUpAdmin, path: str, calls: dict[str, int]
) -> None:
    console.get("static/console.css")
    admin.calls.clear()
    page = console.get(path)
    assert page.status == 200
    sampled = {"diagnose": 1}  # the sampler may look meanwhile
    assert admin.calls - Counter(calls) <= Counter(sampled)
    assert Counter(calls) <= admin.calls
    assert page.text.count("<tr>") <= ROWS + 1
    assert len(page.text) < PAGE_BYTES_MAX
    assert admin.asked_offsets <= 3 * ROWS


def test_a_page_beyond_the_last_is_the_last(console: ConsoleClient) -> None:
    page = console.get("groups", page=999_999)
    assert "951 to 1000 of 1000" in page.plain
    assert console.get("groups", page=0).status == 200
    for wrong in ("-1", "x", "9" * 30, "1.5", "\u0663"):
        assert console.get("groups", page=wrong).status == 400


def test_offsets_of_all_partitions_are_shown_in_part_and_set_as_a_whole(
    console: ConsoleClient, admin: MadeUpAdmin
) -> None:
    page = console.get("group", id="g")
    admin.calls.clear()
    preview = console.send(page, "group/preview", {"to": "latest"}, id="g")
    assert preview.status == 200
    assert admin.calls["list_offsets"] == 2
    assert f"And {PARTITIONS - ROWS} more partitions." in preview.plain
    assert preview.text.count("<tr>") == ROWS + 1
    assert len(preview.hidden["offsets"].splitlines()) == PARTITIONS


def test_what_should_not_happen_says_nothing_of_why(
    console: ConsoleClient, admin: MadeUpAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def groups(**_: object) -> GroupListings:
        raise ValueError("a secret")

    monkeypatch.setattr(admin, "groups", groups)
    page = console.get("groups")
    assert page.status == 500
    assert "This did not work" in page.plain
    assert "a secret" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]


def test_a_node_that_does_not_answer_is_named_where_its_facts_are_missing(
    console: ConsoleClient, admin: MadeUpAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def diagnose(**_: object) -> Diagnosis:
        return Diagnosis(Cluster((), {2: "connection <refused>"}), ())

    assert "No open transaction holds readers back." in console.get("transactions").plain
    monkeypatch.setattr(admin, "diagnose", diagnose)
    page = console.get("transactions")
    assert "Node 2 does not answer, so what it leads is missing here: connection <refused>" in page.plain
    assert "No open transaction holds readers back." not in page.plain


def test_samples_are_bounded() -> None:
    flows = {f"t{number}": Flow(number, 0) for number in range(5_000)}
    sample = sample_of(0, flows, Cluster(()))
    assert len(sample.topics) == TOPICS_MAX
    assert "t4999" in sample.topics
    assert Sampler().samples.maxlen == KEPT


def test_the_sampler_counts_what_was_written_between_two_looks() -> None:
    class Growing(MadeUpAdmin):
        size = 0

        async def replicas(self) -> ReplicasOfNodes:
            self.size += 1_000
            return ReplicasOfNodes({1: NodeReplicas(1, {TopicPartition("t", 0): self.size}, -1, -1, {})}, {})

    async def looks() -> Sampler:
        sampler = Sampler()
        sampler._admin = Growing()  # type: ignore[assignment]
        assert sampler.flow("t") is None
        await sampler.look()
        assert not sampler.samples
        await sampler.look()
        return sampler

    sampler = asyncio.run(looks())
    assert len(sampler.samples) == 1
    assert sampler.sizes == {"t": 2_000}
    flow = sampler.flow("t")
    assert flow is not None
    assert flow.written > 0
    assert sampler.flow("other") == Flow()


def test_pages_of_lists() -> None:
    assert page_of(range(0), 1).first == page_of(range(0), 1).last == 0
    page = page_of(range(ROWS + 1), 2)
    assert (page.first, page.last, page.pages) == (ROWS + 1, ROWS + 1, 2)
