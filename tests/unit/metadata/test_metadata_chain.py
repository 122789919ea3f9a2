"""R10, the metadata never goes back: the chain of digests, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from registered_writer import let_metadata_write, let_write, pass_time
from restored_database import copy_of, read_sql, restore, run_sql

from semel.broker.metadata import store as store_module
from semel.broker.metadata.chain import START, MetadataWentBackError, Position, digest_of
from semel.broker.metadata.changes import (
    Change,
    ClusterCreated,
    MetadataCorruptError,
    ProducerIdsAllocated,
    encode_change,
)
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, encode_image
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.store import (
    Lease,
    MetadataConflictError,
    MetadataStore,
    NotControllerError,
)
from semel.protocol.errors import FatalError, SemelError
from semel.runtime.clock import ManualClock

LEASE_MS = 60_000


def ids(first: int) -> ProducerIdsAllocated:
    return ProducerIdsAllocated(1, first, 1000)


def more(image: MetadataImage) -> list[Change]:
    return [ids(image.next_producer_id)]


class Watched(Metadata):
    """Metadata of one node, with what it tells of."""

    def __init__(self, url: str, clock: ManualClock, holder: str = "node 1", snapshot_changes: int = 1000) -> None:
        self.told: list[str] = []
        self._url = url
        super().__init__(
            MetadataStore(url), clock, holder=holder, lease_ms=LEASE_MS, snapshot_changes=snapshot_changes,
            on_went_back=self._tell,
        )  # fmt: skip

    async def open(self) -> None:
        await super().open()
        let_metadata_write(self, self._url, int(self._holder[-1]))

    async def _tell(self, error: MetadataWentBackError) -> None:
        self.told.append(error.message)


async def write(url: str, clock: ManualClock, count: int, holder: str = "node 1") -> None:
    """Make changes as another process would."""
    other = Watched(url, clock, holder)
    await other.open()
    for _ in range(count):
        await other.change(more)
    await other.close()


async def renew(one: Metadata) -> None:
    await one._keep_lease()


async def acquire(one: Metadata) -> None:
    one._lease = None
    await one._keep_lease()


async def snapshot(one: Metadata) -> None:
    one._snapshot_changes = 0
    await one._snapshot()


async def change(one: Metadata) -> None:
    await one.change(more)


async def refresh(one: Metadata) -> None:
    await one.refresh()


async def heartbeat(one: Metadata) -> None:
    await one.heartbeat()


LOOKS = [change, refresh, renew, acquire, snapshot, heartbeat]
"""Whatever a node does with the database."""

Look = Callable[[Metadata], Awaitable[None]]


async def look_and_fail(one: Watched, look: Look) -> str:
    """Do something with the database, and return what was told of it. Nothing may have been written."""
    image = one.image
    with suppress(MetadataWentBackError):
        await look(one)
    assert one.image is image
    (told,) = one.told
    return told


@pytest.mark.parametrize("look", LOOKS)
def test_R10_a_database_that_lost_its_last_changes_is_found_out_by_any_look_at_it(url: str, look: Look) -> None:
    async def main() -> None:
        one = Watched(url, ManualClock())
        await one.open()
        await one.change(more)
        copy = copy_of(url)
        await one.change(more)
        restore(url, copy)
        told = await look_and_fail(one, look)
        assert "went back: this node has applied its changes up to 2, and the database has changes up to 1 only" in told
        assert "restored from an older copy, or a fail-over lost its last changes" in told
        assert len(read_sql(url, "SELECT sequence FROM semel_metadata_changes")) == 1
        await one.close()

    asyncio.run(main())


@pytest.mark.parametrize(("look", "count"), [*((look, 1) for look in LOOKS), (refresh, 3), (change, 3)])
def test_R10_a_database_that_continued_without_what_it_lost_is_on_another_chain(
    url: str, look: Look, count: int
) -> None:
    """By numbers alone it is as far as this node, or further, and has the same changes in it."""

    async def main() -> None:
        clock = ManualClock()
        one = Watched(url, clock)
        await one.open()
        await one.change(more)
        copy = copy_of(url)
        await one.change(more)
        restore(url, copy)
        pass_time(url, LEASE_MS)
        await write(url, clock, count, holder="node 2")
        told = await look_and_fail(one, look)
        assert "applied its changes up to 2, and the database has another change 2" in told
        assert len(read_sql(url, "SELECT sequence FROM semel_metadata_changes")) == 1 + count
        await one.close()

    asyncio.run(main())


def test_R10_the_same_change_made_again_after_it_was_lost_is_another_one(url: str) -> None:
    """A block of producer ids that was given before a fail-over, and to somebody else after it, say."""

    async def main() -> None:
        clock = ManualClock()
        one = Watched(url, clock)
        await one.open()
        copy = copy_of(url)
        await one.change(more)
        image = one.image
        restore(url, copy)
        clock.advance(ms=1)
        await write(url, clock, 1)
        again = MetadataStore(url)
        found = again.load()
        again.close()
        assert (found.sequence, found.next_producer_id) == (image.sequence, image.next_producer_id)
        assert found.digest != image.digest
        assert "another change 1" in await look_and_fail(one, refresh)
        await one.close()

    asyncio.run(main())


@pytest.mark.parametrize("look", [change, renew, acquire, snapshot, heartbeat])
@pytest.mark.parametrize("has_former", [True, False])
def test_R10_a_database_from_before_this_start_of_the_node_went_back(url: str, look: Look, has_former: bool) -> None:
    """It says that another run is the current one, or that there is no such node: that is old news."""

    async def main() -> None:
        one = Watched(url, ManualClock())
        await one.open()
        await one.change(more)
        if not has_former:
            run_sql(url, "DELETE FROM semel_nodes")
        copy = copy_of(url)
        run_sql(url, "DELETE FROM semel_nodes")
        one._writer = let_write(url, epoch=2)
        await one.change(more)
        restore(url, copy)
        assert "went back: this node has applied its changes up to 2" in await look_and_fail(one, look)
        await one.close()

    asyncio.run(main())


@pytest.mark.parametrize("look", LOOKS)
def test_R10_a_fail_over_that_loses_nothing_is_none(url: str, look: Look) -> None:
    async def main() -> None:
        one = Watched(url, ManualClock())
        await one.open()
        await one.change(more)
        copy = copy_of(url)
        await one.change(more)
        restore(url, copy_of(url))
        await look(one)
        await one.change(more)
        assert one.told == []
        assert read_sql(url, "SELECT max(sequence) FROM semel_metadata_changes") == [(one.image.sequence,)]
        restore(url, copy)
        assert await look_and_fail(one, look)
        await one.close()

    asyncio.run(main())


def test_R10_a_lease_is_not_taken_from_a_database_that_went_back(url: str) -> None:
    """A node that lost its lease stays away from the new one: the rightful holder may have all changes."""

    async def main() -> None:
        clock = ManualClock()
        one = Watched(url, clock)
        await one.open()
        copy = copy_of(url)
        await one.change(more)
        restore(url, copy)
        (before,) = read_sql(url, "SELECT epoch FROM semel_leases")
        await look_and_fail(one, acquire)
        assert read_sql(url, "SELECT epoch FROM semel_leases") == [before]
        await one.close()

    asyncio.run(main())


def test_R10_each_digest_stands_for_all_changes_before_it() -> None:
    known = digest_of(START.digest, 1, "a", "b", 1, 2)
    assert len(known) == 64
    assert known == digest_of(START.digest, 1, "a", "b", 1, 2)
    others = [
        digest_of(known, 1, "a", "b", 1, 2),
        digest_of(START.digest, 2, "a", "b", 1, 2),
        digest_of(START.digest, 1, "ab", "", 1, 2),
        digest_of(START.digest, 1, "a", "b,1", 1, 2),
        digest_of(START.digest, 1, "a", "b", 12, 2),
        digest_of(START.digest, 1, "a", "b", 1, 22),
    ]
    assert len({known, *others}) == 1 + len(others)


def test_R10_a_lease_alone_that_was_lost_is_taken_again(url: str) -> None:
    """No change is missing, so nobody has to stop."""

    async def main() -> None:
        clock = ManualClock()
        one = Watched(url, clock)
        await one.open()
        await one.change(more)
        await one.close()
        copy = copy_of(url)
        one = Watched(url, clock)
        await one.open()
        restore(url, copy)
        await renew(one)
        assert one.controller_epoch == -1
        await renew(one)
        await one.change(more)
        assert (one.image.sequence, one.told) == (2, [])
        await one.close()

    asyncio.run(main())


def test_a_lease_under_an_epoch_that_was_given_twice_is_its_holders(url: str) -> None:
    """A fail-over that lost a lease gives its epoch to the next holder."""
    store = MetadataStore(url)
    store.create()
    writer = let_write(url)
    first = store.acquire_lease("node 1", duration_ms=LEASE_MS, now_ms=0)
    run_sql(url, "DELETE FROM semel_leases")
    second = store.acquire_lease("node 2", duration_ms=LEASE_MS, now_ms=0)
    assert first.epoch == second.epoch
    with pytest.raises(NotControllerError, match="node 2"):
        store.append([ids(0)], after=START, writer=writer, lease=first, now_ms=0)
    store.release_lease(first)
    store.append([ids(0)], after=START, writer=writer, lease=second, now_ms=0)
    with pytest.raises(NotControllerError, match="node 2 is the controller"):
        store.acquire_lease("node 3", duration_ms=LEASE_MS, now_ms=0)
    store.close()


def test_R10_what_another_writer_continued_is_applied(url: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        one = Watched(url, clock)
        await one.open()
        await one.change(more)
        pass_time(url, LEASE_MS)
        await write(url, clock, 3, holder="node 2")
        assert (await one.refresh()).sequence == 4
        await renew(one)
        await renew(one)
        await one.change(more)
        again = MetadataStore(url)
        assert again.load() == one.image
        again.close()
        assert (one.image.sequence, one.told) == (5, [])
        await one.close()

    asyncio.run(main())


def test_R10_a_commit_whose_answer_was_lost_is_a_link_of_the_chain(
    url: str, lose_answers: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        one = Watched(url, ManualClock())
        await one.open()
        lose_answers()
        await one.change(more)
        monkeypatch.undo()
        await one.change(more)
        again = MetadataStore(url)
        assert again.load() == one.image
        again.close()
        assert (one.image.sequence, one.told) == (2, [])
        await one.close()

    asyncio.run(main())


def test_R10_once_it_went_back_nothing_is_read_from_it_or_written_any_more(url: str) -> None:
    """Two servers may take turns behind one address."""

    async def main() -> None:
        one = Watched(url, ManualClock())
        await one.open()
        copy = copy_of(url)
        await one.change(more)
        whole = copy_of(url)
        restore(url, copy)
        await look_and_fail(one, renew)
        restore(url, whole)
        for look in (change, refresh):
            with pytest.raises(MetadataWentBackError, match="changes up to 0 only"):
                await look(one)
        await renew(one)
        assert (len(one.told), one.image.sequence) == (1, 1)
        assert len(read_sql(url, "SELECT sequence FROM semel_metadata_changes")) == 1
        await one.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE semel_metadata_changes SET payload = \'{"cluster_id":"d"}\' WHERE sequence = 1',
        "UPDATE semel_metadata_changes SET written_at_ms = 5 WHERE sequence = 2",
        "UPDATE semel_metadata_changes SET controller_epoch = 7 WHERE sequence = 2",
        "DELETE FROM semel_metadata_changes WHERE sequence = 2",
    ],
)
def test_R10_a_change_in_the_middle_that_is_not_what_it_was_is_damage(url: str, damage: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        one = Watched(url, clock)
        await one.open()
        await one.change(lambda _: [ClusterCreated("c"), ids(0), ids(1000)])
        run_sql(url, damage)
        two = Watched(url, clock)
        with pytest.raises(MetadataCorruptError, match=r"change \d there does not continue change \d"):
            await two.open()
        with pytest.raises(MetadataWentBackError, match="does not continue change"):
            await two.refresh()
        assert len(two.told) == 1
        await two.close()
        await one.close()

    asyncio.run(main())


def test_R10_a_position_that_only_a_snapshot_has_is_compared_as_far_as_that_goes(url: str) -> None:
    async def main() -> None:
        one = Watched(url, ManualClock(), snapshot_changes=2)
        await one.open()
        positions = [(await one.change(more)).position for _ in range(6)]
        assert read_sql(url, "SELECT min(sequence) FROM semel_metadata_changes") == [(5,)]
        for known in positions:
            await one.confirm(known)
        with pytest.raises(MetadataWentBackError, match="another change 4"):
            await one.confirm(Position(4, START.digest))
        await one.confirm(Position(2, START.digest))  # nothing is left of it
        with pytest.raises(MetadataWentBackError, match="changes up to 6 only"):
            await one.confirm(Position(7, START.digest))
        await one.close()
        again = Watched(url, ManualClock())
        await again.open()
        assert again.image == one.image
        await again.change(more)
        await again.close()

    asyncio.run(main())


# --- Tables of the version before ------------------------------------------------------------------------------------

VERSION_1 = (
    "CREATE TABLE semel_schema (version INTEGER NOT NULL, PRIMARY KEY (version))",
    "INSERT INTO semel_schema VALUES (1)",
    "CREATE TABLE semel_metadata_changes (sequence BIGINT NOT NULL, kind VARCHAR(64) NOT NULL, payload TEXT NOT NULL, "
    "controller_epoch BIGINT NOT NULL, written_at_ms BIGINT NOT NULL, PRIMARY KEY (sequence))",
    "CREATE TABLE semel_metadata_snapshots (sequence BIGINT NOT NULL, payload TEXT NOT NULL, "
    "written_at_ms BIGINT NOT NULL, PRIMARY KEY (sequence))",
    "CREATE TABLE semel_leases (name VARCHAR(64) NOT NULL, holder VARCHAR(255) NOT NULL, epoch BIGINT NOT NULL, "
    "expires_at_ms BIGINT NOT NULL, PRIMARY KEY (name))",
)


def make_version_1(url: str, changes: int, snapshots: tuple[int, ...] = ()) -> None:
    """Make the tables as that version left them: two snapshots at most, and the changes after the older one."""
    run_sql(url, *VERSION_1)
    image, rows = EMPTY_IMAGE, []
    for number in range(1, changes + 1):
        made: Change = ClusterCreated("c") if number == 1 else ids(number * 1000)
        image = image.apply(made, Position(number, ""))
        kind, payload = encode_change(made)
        rows.append(f"INSERT INTO semel_metadata_changes VALUES ({number}, '{kind}', '{payload}', 1, {number})")
        if number in snapshots:
            rows.append(f"INSERT INTO semel_metadata_snapshots VALUES ({number}, '{encode_image(image)}', 1)")
    if len(snapshots) > 1:
        rows.append(f"DELETE FROM semel_metadata_changes WHERE sequence <= {snapshots[0]}")
    run_sql(url, *rows, "INSERT INTO semel_leases VALUES ('controller', 'node 1', 4, 0)")


@pytest.mark.parametrize(("changes", "snapshots"), [(0, ()), (3, ()), (5, (3,)), (9, (4, 7)), (7, (4, 7))])
def test_R10_tables_of_version_1_are_upgraded_to_a_chain(url: str, changes: int, snapshots: tuple[int, ...]) -> None:
    async def main() -> None:
        make_version_1(url, changes, snapshots)
        store = MetadataStore(url)
        before, deleted = store.load(), store.deleted_topics()
        assert read_sql(url, "SELECT version FROM semel_schema") == [(1,)]
        one = Watched(url, ManualClock())
        await one.open()
        assert one.image.sequence == before.sequence == changes
        assert (one.image.cluster_id, one.image.next_producer_id) == (before.cluster_id, before.next_producer_id)
        assert (store.load(), store.deleted_topics()) == (one.image, deleted)
        position = (await one.change(more)).position
        for sequence in (*snapshots, changes + 1):
            (digest,) = {
                *read_sql(url, f"SELECT digest FROM semel_metadata_changes WHERE sequence = {sequence}"),
                *read_sql(url, f"SELECT digest FROM semel_metadata_snapshots WHERE sequence = {sequence}"),
            }
            await one.confirm(Position(sequence, digest[0]))
        await one.close()
        assert read_sql(url, "SELECT version FROM semel_schema") == [(3,)]
        again = Watched(url, ManualClock())
        await again.open()
        assert again.image.position == position
        if len(snapshots) > 1:  # the older one is where the chain begins
            run_sql(url, f"DELETE FROM semel_metadata_snapshots WHERE sequence = {snapshots[1]}")
            assert store.load().position == position
        run_sql(url, f"UPDATE semel_metadata_changes SET written_at_ms = 77 WHERE sequence = {changes + 1}")
        with pytest.raises(MetadataCorruptError, match="does not continue"):
            store.load()
        store.close()
        await again.close()

    asyncio.run(main())


def test_R10_tables_whose_older_node_still_runs_are_not_upgraded(url: str) -> None:
    """It would write changes without digests into them."""

    async def main() -> None:
        make_version_1(url, 3)
        run_sql(url, "UPDATE semel_leases SET holder = 'older', expires_at_ms = 9000000000000000")
        one = Watched(url, ManualClock())
        one._wait_for_lease = one._acquire  # type: ignore[method-assign]
        with pytest.raises(NotControllerError, match="older is the controller"):
            await one.open()
        await one.close()
        assert read_sql(url, "SELECT version FROM semel_schema") == [(1,)]
        store = MetadataStore(url)
        with pytest.raises(NotControllerError):
            store.upgrade(Lease("node 1", 4, 0))
        assert store.load().sequence == 3
        store.close()

    asyncio.run(main())


def test_R10_an_older_version_refuses_the_tables_with_digests(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetadataStore(url)
    store.create()
    monkeypatch.setattr(store_module, "SCHEMA_VERSION", 1)
    with pytest.raises(FatalError, match=r"newer semel \(format 3, this one reads 1\)"):
        store.create()
    store.close()


def test_R5_a_writer_that_missed_more_than_is_kept_writes_nothing(url: str) -> None:
    """The numbers that it would use are free again: only snapshots have what was there."""

    async def main() -> None:
        one = Watched(url, ManualClock(), snapshot_changes=2)
        await one.open()
        first = (await one.change(more)).position
        for _ in range(5):
            await one.change(more)
        store = MetadataStore(url)
        with pytest.raises(MetadataConflictError, match="load the metadata again") as caught:
            store.changes_after(first)
        assert isinstance(caught.value, SemelError)
        for after in (START, first):
            with pytest.raises(MetadataConflictError, match=f"the metadata has changed since {after.sequence}"):
                store.append([ids(0)], after=after, writer=let_write(url), now_ms=0)
        assert read_sql(url, "SELECT min(sequence) FROM semel_metadata_changes") == [(5,)]
        store.close()
        await one.close()

    asyncio.run(main())
