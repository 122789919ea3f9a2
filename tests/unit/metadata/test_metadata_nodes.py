"""Which nodes may write metadata, what of them the database knows, and how they follow each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
from registered_writer import pass_time
from restored_database import read_sql, run_sql

from semel.broker.metadata import metadata as metadata_module
from semel.broker.metadata.chain import START, digest_of
from semel.broker.metadata.changes import BrokerRegistered, Change, ClusterCreated, ProducerIdsAllocated
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.runs import NodeDeposedError
from semel.broker.metadata.store import (
    Alone,
    MetadataConflictError,
    MetadataStore,
    NotControllerError,
    NotRegisteredError,
    sqlite_url,
)
from semel.broker.producer_ids import BLOCK_SIZE, ProducerIds
from semel.protocol.int_bounds import INT64_MAX
from semel.runtime.clock import ManualClock

NOW = 1_700_000_000_000
HOUR = 3_600_000
SESSION_MS = 60_000
postgresql = pytest.mark.postgresql


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(str(tmp_path / "metadata.sqlite"))
    found: str = request.getfixturevalue("postgresql_url")
    return found


def ids(first: int) -> ProducerIdsAllocated:
    return ProducerIdsAllocated(1, first, 1000)


def more(image: MetadataImage) -> list[Change]:
    return [ids(image.next_producer_id)]


def registration(node_id: int = 1, incarnation: str = "first") -> BrokerRegistered:
    return BrokerRegistered(node_id, incarnation, "directory", "host", 1, "host", 2)


class Told(Metadata):
    """A node's metadata in a shared database, with what it tells of."""

    def __init__(self, url: str, node_id: int = 1) -> None:
        self.deposed: list[str] = []
        self.node_id = node_id
        self.store = MetadataStore(url)
        self.clock = ManualClock(NOW)
        super().__init__(
            self.store, self.clock, holder=f"node {node_id}", lease_ms=SESSION_MS, snapshot_changes=1000,
            is_shared=True, on_deposed=lambda error: self.deposed.append(error.message),
        )  # fmt: skip


async def started(url: str, node_id: int = 1) -> Told:
    """Return the metadata of a node that has registered."""
    made = Told(url, node_id)
    await made.open()
    if not made.image.cluster_id:
        await made.change(lambda _: [ClusterCreated("c")])
    await made.register(registration(node_id))
    return made


@asynccontextmanager
async def running(metadata: Metadata) -> AsyncIterator[asyncio.Task[None]]:
    duty = asyncio.ensure_future(metadata.run())
    try:
        yield duty
    finally:
        duty.cancel()
        with suppress(asyncio.CancelledError):
            await duty


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # another connection, or the thread of this one
            await asyncio.sleep(0.01)


def content(url: str) -> list[Any]:
    tables = ("semel_metadata_changes", "semel_metadata_snapshots", "semel_leases", "semel_nodes")
    return [read_sql(url, f"SELECT * FROM {table}") for table in tables]


# --- What a node says -------------------------------------------------------------------------------------------------


def test_a_database_that_is_away_is_told_once_a_minute_and_as_what_the_node_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node wrote an error every 0.7 s, that a lease was not renewed which most of them had never had."""

    async def run() -> None:
        url = sqlite_url(str(tmp_path / "metadata.sqlite"))
        nodes = [await started(url, node_id) for node_id in (1, 2)]

        def away(*_: object, **__: object) -> None:
            raise MetadataUnavailableError("no connection")

        for node in nodes:
            with monkeypatch.context() as database:
                database.setattr(MetadataStore, "renew_lease", away)
                database.setattr(MetadataStore, "acquire_lease", away)
                caplog.clear()
                for _ in range(130):
                    await node._keep_lease()
                    node.clock.advance(ms=1000)
            first = "this node is the controller, and its lease can't be renewed"
            second = "this node is not the controller, and can't see whether another one is"
            said = f"{first if node.node_id == 1 else second}; it is tried again: no connection"
            assert caplog.messages == [said] * 3
            caplog.clear()
            await node._keep_lease()
            assert caplog.messages == []
            with monkeypatch.context() as database:
                database.setattr(MetadataStore, "renew_lease", away)
                database.setattr(MetadataStore, "acquire_lease", away)
                await node._keep_lease()
            assert caplog.messages == [said], "it was back meanwhile"
        for node in nodes:
            await node.close()

    asyncio.run(run())


# --- Who may write ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock_ms", [NOW - HOUR, NOW, NOW + HOUR])
def test_R5_a_deposed_run_of_a_node_can_write_nothing_whatever_its_clock_says(url: str, clock_ms: int) -> None:
    store = MetadataStore(url)
    store.create()
    lease = store.acquire_lease("node 1", duration_ms=SESSION_MS, now_ms=NOW)
    store.register(registration(), [], after=START, now_ms=NOW)
    (old,) = (each.writer for each in store.sessions(now_ms=NOW))
    after = store.load().position
    store.append([ids(0)], after=after, writer=old, lease=lease, now_ms=clock_ms)
    store.register(registration(incarnation="second"), [], after=store.load().position, now_ms=NOW)
    image = store.load()
    before = content(url)
    position = image.position
    for refused in (
        lambda: store.append([ids(1000)], after=position, writer=old, now_ms=clock_ms),
        lambda: store.append([ids(1000)], after=position, writer=old, lease=lease, now_ms=clock_ms),
        lambda: store.write_snapshot(image, lease=lease, writer=old, now_ms=clock_ms),
        lambda: store.renew_lease(lease, duration_ms=SESSION_MS, writer=old, now_ms=clock_ms),
        lambda: store.acquire_lease("node 1", duration_ms=SESSION_MS, writer=old, now_ms=clock_ms),
        lambda: store.heartbeat(old, seen=position, now_ms=clock_ms),
    ):
        with pytest.raises(NodeDeposedError, match="node 1, broker epoch 1, is over: it was started again"):
            refused()
    store.sign_off(old, None)
    assert content(url) == before
    store.close()


def test_R5_a_node_that_was_started_again_hears_of_it_once_and_writes_no_more(url: str) -> None:
    async def main() -> None:
        old = await started(url)
        new = await started(url)
        assert new.broker_epoch == new.image.sequence == 3
        with pytest.raises(NodeDeposedError, match="broker epoch 3"):
            await old.heartbeat()
        for act in (old.heartbeat(), old.change(more), old.refresh(), old.at(100)):
            with pytest.raises(NodeDeposedError):
                await act
        await old._keep_lease()
        assert len(old.deposed) == 1
        assert "give one of them another node.id" in old.deposed[0]
        await old.close()
        await new.heartbeat()
        await new.change(more)
        assert (new.deposed, store_silence(url)) == ([], [])
        await new.close()

    asyncio.run(main())


def store_silence(url: str) -> list[int]:
    """Return the nodes that have not been heard of for a session."""
    store = MetadataStore(url)
    try:
        return [each.node_id for each in store.silent_nodes(SESSION_MS, now_ms=NOW)]
    finally:
        store.close()


def test_R5_before_its_registration_a_node_writes_only_what_creates_the_cluster(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(metadata_module, "_REGISTRATION_PATIENCE_S", 0.01)
        one = Told(url)
        await one.open()
        with pytest.raises(NotRegisteredError):
            await one.change(lambda _: [ClusterCreated("c"), ids(0)])
        await one.change(lambda _: [ClusterCreated("c")])
        with pytest.raises(NotRegisteredError):
            await one.change(more)
        assert one.image.sequence == 1
        await one.register(registration())
        await one.change(more)
        assert (one.image.sequence, one.broker_epoch) == (3, 2)
        await one.close()

    asyncio.run(main())


def test_a_change_that_comes_while_the_node_starts_waits_for_its_registration(url: str) -> None:
    """A listener may accept before the node has registered."""

    async def main() -> None:
        one = Told(url)
        await one.open()
        await one.change(lambda _: [ClusterCreated("c")])
        early = asyncio.ensure_future(one.change(more))
        await asyncio.sleep(0)
        await one.register(registration())
        assert (await early).sequence == 3
        await one.close()

    asyncio.run(main())


def test_a_registration_is_one_transaction_with_what_it_entails(url: str) -> None:
    async def main() -> None:
        one = Told(url)
        await one.open()
        await one.change(lambda _: [ClusterCreated("c")])
        seen: list[int] = []

        def further(image: MetadataImage) -> list[Change]:
            seen.append(image.sequence)
            return [ids(0), ids(1000)]

        image = await one.register(registration(), further)
        assert (image.sequence, image.next_producer_id, one.broker_epoch, seen) == (4, 2000, 2, [1])
        writers = read_sql(url, "SELECT writer_node, writer_epoch FROM semel_metadata_changes ORDER BY sequence")
        assert writers == [(None, None), (1, 2), (1, 2), (1, 2)]
        (session,) = one.store.sessions(now_ms=NOW)
        assert (session.broker_epoch, session.incarnation, session.directory_id) == (2, "first", "directory")
        await one.close()

    asyncio.run(main())


def test_R5_a_registration_that_came_second_is_decided_again(url: str) -> None:
    async def main() -> None:
        one = await started(url, 1)
        two = Told(url, 2)
        await two.open()
        await one.change(more)
        seen: list[int] = []

        def further(image: MetadataImage) -> list[Change]:
            seen.append(image.sequence)
            return []

        await two.register(registration(2), further)
        assert seen == [2, 3]
        assert (two.broker_epoch, set(two.image.brokers)) == (4, {1, 2})
        (first, second) = one.store.sessions(now_ms=NOW)
        assert (first.broker_epoch, second.broker_epoch) == (2, 4)
        await two.close()
        await one.close()

    asyncio.run(main())


def test_a_node_that_must_be_alone_registers_only_if_it_is(url: str) -> None:
    store = MetadataStore(url)
    store.create()
    store.register(registration(1), [], after=START, now_ms=NOW)
    before = content(url)
    alone = Alone("node 2", SESSION_MS)

    def register() -> None:
        store.register(registration(2), [], after=store.load().position, now_ms=NOW, alone=alone)

    with pytest.raises(NotControllerError, match=r"node 1 runs on this metadata: it was heard of \d+ ms ago"):
        register()
    assert content(url) == before
    pass_time(url, SESSION_MS)
    lease = store.acquire_lease("node 1", duration_ms=SESSION_MS, now_ms=NOW)
    before = content(url)
    with pytest.raises(NotControllerError, match="node 1 is the controller"):
        register()
    assert content(url) == before
    store.release_lease(lease)
    register()
    store.close()


def test_the_metadata_is_complete_until_a_look_at_the_database_began(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change may be written just behind what is read; and who hears of one knows when it was not there yet."""

    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        read = one.store.changes_after

        def slowly(*arguments: Any) -> Any:
            found = read(*arguments)
            one.clock.advance(ms=1_000)
            return found

        monkeypatch.setattr(one.store, "changes_after", slowly)
        begun = one.clock.monotonic()
        await one.refresh()
        assert one.complete_until == begun
        heard: list[float] = []
        one.add_listener(lambda *_: heard.append(one.complete_until))
        await two.change(more)
        await one.refresh()
        assert heard == [begun], "it was not there when the look before began"
        assert one.complete_until == begun + 1.0
        for each in (one, two):
            await each.close()

    asyncio.run(main())


def test_P1_the_same_change_by_another_writer_is_not_taken_for_ones_own(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of producer ids, say: what this node asked for was not written, and somebody else has it."""

    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        await one.refresh()

        def lose(*_: object, **__: object) -> None:
            two.store.append([ids(0)], after=two.image.position, writer=two._writer, now_ms=NOW)
            raise MetadataUnavailableError("connection reset")

        monkeypatch.setattr(one.store, "append", lose)
        assert one._clock.now_ms() == NOW
        with pytest.raises(MetadataUnavailableError):
            await one.change(lambda _: [ids(0)])
        monkeypatch.undo()
        await one.change(more)
        assert one.image.next_producer_id == 2000
        await two.close()
        await one.close()

    asyncio.run(main())


def test_R10_a_digest_says_who_wrote_the_change() -> None:
    digests = {digest_of(START.digest, 1, "a", "b", 0, 2, *writer) for writer in ((), (1, 2), (1, 3), (2, 2))}
    assert len(digests) == 4


# --- What the database knows of nodes ---------------------------------------------------------------------------------


def test_a_node_is_silent_when_its_session_is_over_and_at_once_when_it_has_signed_off(url: str) -> None:
    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        assert await one.silent_nodes(SESSION_MS) == []
        pass_time(url, SESSION_MS)
        await two.heartbeat()
        (silent,) = await one.silent_nodes(SESSION_MS)
        assert (silent.node_id, silent.broker_epoch) == (1, 2)
        assert silent.silent_ms >= SESSION_MS
        await one.heartbeat()
        assert await one.silent_nodes(SESSION_MS) == []
        seen = {each.node_id: each.seen_sequence for each in one.store.sessions(now_ms=NOW)}
        assert seen == {1: one.image.sequence, 2: two.image.sequence}
        await two.close()
        (silent,) = await one.silent_nodes(SESSION_MS)
        assert silent.node_id == 2
        await one.close()

    asyncio.run(main())


def test_R5_a_node_whose_heartbeat_came_while_the_question_waited_for_the_database_is_not_silent() -> None:
    """It was left out of the answer, and so it counted as dead until the next one."""
    store = MetadataStore("sqlite://")
    store.create()
    store.register(registration(1), [], after=START, now_ms=NOW + 5)
    (session,) = store.silent_nodes(0, now_ms=NOW)
    assert (session.node_id, session.silent_ms) == (1, 0)
    store.close()


@postgresql
def test_leases_and_heartbeats_go_by_the_time_of_the_database(postgresql_url: str) -> None:  # noqa: F811
    store = MetadataStore(postgresql_url)
    store.create()
    store.register(registration(1), [], after=START, now_ms=0)
    store.acquire_lease("node 1", duration_ms=SESSION_MS, now_ms=0)
    for clock_ms in (0, NOW + 1000 * HOUR):
        with pytest.raises(NotControllerError):
            store.acquire_lease("node 2", duration_ms=SESSION_MS, now_ms=clock_ms)
        assert store.silent_nodes(SESSION_MS, now_ms=clock_ms) == []
    store.close()


# --- Following --------------------------------------------------------------------------------------------------------


def test_a_node_without_the_lease_starts_follows_and_changes(url: str) -> None:
    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        assert (one.controller_epoch, two.controller_epoch) == (1, -1)
        told: list[tuple[Change, int]] = []
        two.add_listener(lambda change, image: told.append((change, image.sequence)))
        async with running(one), running(two):
            for _ in range(3):
                await two.at((await one.change(more)).sequence)
            assert two.image == one.image
            assert [change for change, _ in told] == [ids(0), ids(1000), ids(2000)]
            await one.at((await two.change(more)).sequence)
            assert one.image == two.image
            with pytest.raises(NotControllerError):
                await two.change(more, as_controller=True)
        await one.close()
        await two._keep_lease()
        assert two.controller_epoch == 2
        await two.close()

    asyncio.run(main())


def test_changes_of_others_are_found_without_being_asked_for(url: str) -> None:
    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        async with running(two):
            await one.change(more)
            await until(lambda: two.image.sequence == one.image.sequence)
        await two.close()
        await one.close()

    asyncio.run(main())


def test_nodes_that_change_the_metadata_at_the_same_time_all_succeed(url: str) -> None:
    async def main() -> None:
        nodes = [await started(url, number) for number in (1, 2, 3)]
        await asyncio.gather(*(node.change(more) for node in nodes for _ in range(5)))
        await asyncio.gather(*(node.refresh() for node in nodes))
        assert {node.image.next_producer_id for node in nodes} == {15_000}
        assert len({node.image.digest for node in nodes}) == 1
        for node in nodes:
            await node.close()

    asyncio.run(main())


def test_what_waits_for_a_change_that_does_not_come_ends_with_the_node(url: str) -> None:
    async def main() -> None:
        one = await started(url)
        assert (await one.at(2)).sequence == 2
        waiting = asyncio.ensure_future(one.at(100))
        await asyncio.sleep(0)
        await one.close()
        with pytest.raises(NotRegisteredError, match="stopping"):
            await waiting

    asyncio.run(main())


def test_a_database_that_is_away_for_a_while_is_followed_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        looks: list[object] = []

        def fail(*_: object) -> None:
            looks.append(None)
            raise MetadataUnavailableError("away")

        with monkeypatch.context() as patch:
            patch.setattr(two.store, "changes_after", fail)
            async with running(two) as duty:
                await until(lambda: len(looks) > 1)
                await one.change(more)
                patch.undo()
                await until(lambda: two.image.sequence == one.image.sequence)
                assert not duty.done()
        await two.close()
        await one.close()

    asyncio.run(main())


def test_a_store_of_one_node_is_not_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(metadata_module, "_POLL_S", 0.001)
        store = MetadataStore(sqlite_url(str(tmp_path / "metadata.sqlite")))
        one = Metadata(store, ManualClock(), holder="node 1", lease_ms=10**9, snapshot_changes=9)
        await one.open()
        await one.register(registration())

        def forbidden(*_: object, **__: object) -> None:
            raise AssertionError("nobody else can have changed it")

        for name in ("changes_after", "heartbeat", "renew_lease"):
            monkeypatch.setattr(store, name, forbidden)
        async with running(one) as duty:
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert not duty.done()
        await one.close()

    asyncio.run(main())


@postgresql
def test_a_change_of_another_node_wakes_before_the_next_poll(
    postgresql_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening = "SELECT pid FROM pg_stat_activity WHERE left(query, 6) = 'LISTEN' AND datname = current_database()"

    async def main() -> None:
        one, two = await started(postgresql_url, 1), await started(postgresql_url, 2)
        monkeypatch.setattr(metadata_module, "_POLL_S", HOUR)
        async with running(two):
            await until(lambda: bool(read_sql(postgresql_url, listening)))
            await asyncio.sleep(0.1)
            for _ in range(3):
                await one.change(more)
                await until(lambda: two.image.sequence == one.image.sequence)
        await until(lambda: not read_sql(postgresql_url, listening))
        await two.close()
        await one.close()

    asyncio.run(main())


@postgresql
def test_where_nothing_can_listen_polls_find_the_change(
    postgresql_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        one, two = await started(postgresql_url, 1), await started(postgresql_url, 2)
        monkeypatch.setattr("semel.broker.metadata.notifications.CHANNEL", "no channel!")
        async with running(two):
            await one.change(more)
            await until(lambda: two.image.sequence == one.image.sequence)
        await two.close()
        await one.close()

    asyncio.run(main())


# --- Tables of the version before -------------------------------------------------------------------------------------


def make_version_2(url: str) -> None:
    """Make the tables as that version left them: no nodes, and changes without writers."""
    store = MetadataStore(url)
    store.create()
    store.close()
    first = digest_of(START.digest, 1, "cluster-created", '{"cluster_id":"c"}', 4, 7)
    run_sql(
        url,
        "DROP TABLE semel_nodes",
        "ALTER TABLE semel_metadata_changes DROP COLUMN writer_node",
        "ALTER TABLE semel_metadata_changes DROP COLUMN writer_epoch",
        "UPDATE semel_schema SET version = 2",
        "INSERT INTO semel_metadata_changes (sequence, kind, payload, controller_epoch, written_at_ms, digest) "
        f"VALUES (1, 'cluster-created', '{{\"cluster_id\":\"c\"}}', 4, 7, '{first}')",
        "INSERT INTO semel_leases VALUES ('controller', 'node 1', 4, 0)",
    )


def test_R10_tables_without_writers_are_upgraded_and_their_chain_continues(url: str) -> None:
    async def main() -> None:
        make_version_2(url)
        store = MetadataStore(url)
        before = store.load()
        assert (before.cluster_id, read_sql(url, "SELECT version FROM semel_schema")) == ("c", [(2,)])
        one = await started(url)
        assert read_sql(url, "SELECT version FROM semel_schema") == [(3,)]
        await one.confirm(before.position)
        await one.change(more)
        assert store.load() == one.image
        with pytest.raises(MetadataConflictError):
            store.append([ids(0)], after=before.position, writer=one._writer, now_ms=NOW)
        store.close()
        await one.close()

    asyncio.run(main())


def test_P1_the_block_of_a_registration_begins_behind_what_that_changes(url: str) -> None:
    async def main() -> None:
        node = await started(url, 1)
        ids, image = ProducerIds(node, 1), node.image
        skipped = ProducerIdsAllocated(1, image.next_producer_id, 5_000)
        first = image.next_producer_id + 5_000
        assert ids.first_block(image, [skipped]) == [ProducerIdsAllocated(1, first, BLOCK_SIZE)]
        ids.registered()
        assert [await ids.next_producer_id() for _ in range(2)] == [first, first + 1]
        assert node.image is image, "nothing was asked of the database"
        full = replace(image, next_producer_id=INT64_MAX - BLOCK_SIZE + 1)
        assert ProducerIds(node, 1).first_block(full, []) == []
        await node.close()

    asyncio.run(main())


def test_P1_nodes_that_draw_producer_ids_at_the_same_time_never_get_the_same(url: str) -> None:
    async def main() -> None:
        nodes = [await started(url, node_id) for node_id in (1, 2, 3)]
        sources = [ProducerIds(node, node.node_id) for node in nodes]
        # each one's image lacks the blocks that the others have just taken
        drawn = await asyncio.gather(*(ids.next_producer_id() for _ in range(3) for ids in sources))
        for ids in sources:
            ids._next = ids._end  # its block is used up
        drawn += await asyncio.gather(*(ids.next_producer_id() for ids in sources))
        assert len(set(drawn)) == len(drawn) == 12
        blocks = sorted({one // BLOCK_SIZE for one in drawn})
        assert blocks == list(range(6)), "no block was passed over"
        for node in nodes:
            await node.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_away", [False, True])
def test_those_who_wait_to_read_share_one_read(url: str, monkeypatch: pytest.MonkeyPatch, is_away: bool) -> None:
    """Where the database is locked each read waits for seconds: a row of them would keep the last one for minutes."""

    async def main() -> None:
        one, two = await started(url, 1), await started(url, 2)
        read, go = one.store.changes_after, threading.Event()
        reads: list[object] = []

        def slowly(*arguments: Any) -> Any:
            reads.append(None)
            go.wait(60)
            if is_away:
                raise MetadataUnavailableError("locked")
            return read(*arguments)

        monkeypatch.setattr(one.store, "changes_after", slowly)
        first = asyncio.ensure_future(one.refresh())
        await until(lambda: len(reads) == 1)
        await two.change(more)  # the first one may miss it, those who ask now may not
        others = [asyncio.ensure_future(one.refresh()) for _ in range(20)]
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(first, *others, return_exceptions=True)
        assert len(reads) == 2
        if is_away:
            assert {str(answer) for answer in answers} == {"locked [BROKER_NOT_AVAILABLE]"}
        else:
            assert {answer.sequence for answer in answers[1:]} == {two.image.sequence}
            monkeypatch.undo()
            await two.change(more)
            assert (await one.refresh()).sequence == two.image.sequence
        for each in (one, two):
            await each.close()

    asyncio.run(main())
