"""The metadata in SQL, on SQLite and on a real PostgreSQL: compare-and-set, leases, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from registered_writer import let_metadata_write, let_write, pass_time

from semel.broker.metadata.chain import START
from semel.broker.metadata.changes import Change, ClusterCreated, ProducerIdsAllocated
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.store import (
    MetadataConflictError,
    MetadataStore,
    NotControllerError,
    sqlite_url,
)
from semel.protocol.errors import FatalError
from semel.runtime.clock import ManualClock
from semel.runtime.setting import ConfigError

NOW = 1_700_000_000_000


@pytest.fixture
def store(url: str) -> Iterator[MetadataStore]:
    made = MetadataStore(url)
    made.create()
    yield made
    made.close()


def other(url: str) -> MetadataStore:
    made = MetadataStore(url)
    try:
        made.create()
    except BaseException:
        made.close()
        raise
    return made


def ids(first: int) -> ProducerIdsAllocated:
    return ProducerIdsAllocated(1, first, 1000)


def test_what_was_written_is_loaded(url: str, store: MetadataStore) -> None:
    writer = let_write(url)
    changes: list[Change] = [ClusterCreated("c"), ids(0)]
    first = store.append(changes, after=START, writer=writer, now_ms=NOW)
    (third,) = store.append([ids(1000)], after=first[-1], writer=writer, now_ms=NOW)
    again = other(url)
    image = again.load()
    again.close()
    assert (image.sequence, image.cluster_id, image.next_producer_id) == (3, "c", 2000)
    assert image.position == third
    assert store.changes_after(first[0]) == [(first[1], ids(0)), (third, ids(1000))]


def test_R5_two_writers_cannot_write_the_same_sequence(url: str, store: MetadataStore) -> None:
    """Compare-and-set: the second one must look at what the first one did."""
    second = other(url)
    store.append([ids(0)], after=START, writer=let_write(url, 1), now_ms=NOW)
    with pytest.raises(MetadataConflictError):
        second.append([ids(0), ids(1000)], after=START, writer=let_write(url, 2), now_ms=NOW)
    assert second.load().next_producer_id == 1000
    second.close()


def test_the_lease_has_one_holder_and_its_epoch_fences_the_last_one(url: str, store: MetadataStore) -> None:
    writer = let_write(url)
    first = store.acquire_lease("node 1", duration_ms=60_000, now_ms=NOW)
    pass_time(url, 30_000)
    with pytest.raises(NotControllerError, match=r"node 1 is the controller, for \d+ ms more"):
        store.acquire_lease("node 2", duration_ms=1000, now_ms=NOW)
    first = store.renew_lease(first, duration_ms=60_000, now_ms=NOW)
    pass_time(url, 30_001)
    with pytest.raises(NotControllerError):
        store.acquire_lease("node 2", duration_ms=1000, now_ms=NOW)
    pass_time(url, 30_000)
    second = store.acquire_lease("node 2", duration_ms=60_000, now_ms=NOW)
    assert second.epoch == first.epoch + 1
    for refused in (
        lambda: store.append([ids(0)], after=START, writer=writer, lease=first, now_ms=NOW),
        lambda: store.renew_lease(first, duration_ms=1000, now_ms=NOW),
        lambda: store.write_snapshot(EMPTY_IMAGE, lease=first, now_ms=NOW),
    ):
        with pytest.raises(NotControllerError, match="node 2"):
            refused()
    store.release_lease(first)
    with pytest.raises(NotControllerError):
        store.acquire_lease("node 3", duration_ms=1000, now_ms=NOW)
    store.release_lease(second)
    assert store.acquire_lease("node 3", duration_ms=1000, now_ms=NOW).epoch == second.epoch + 1


def test_a_node_takes_its_own_lease_again_at_once(store: MetadataStore) -> None:
    """After a crash: the process that holds the folder's lock is that node, and its last process is dead."""
    before = store.acquire_lease("node 1", duration_ms=1000, now_ms=NOW)
    assert store.acquire_lease("node 1", duration_ms=1000, now_ms=NOW).epoch == before.epoch + 1


def test_snapshots_shorten_the_log_and_an_unreadable_one_is_passed_over(url: str, store: MetadataStore) -> None:
    lease = store.acquire_lease("node 1", duration_ms=1000, now_ms=NOW)
    writer = let_write(url)
    images = [EMPTY_IMAGE]
    for number in range(6):
        (position,) = store.append([ids(number * 1000)], after=images[-1].position, writer=writer, now_ms=NOW)
        images.append(images[-1].apply(ids(number * 1000), position))
        if number % 2 == 1:
            store.write_snapshot(images[-1], lease=lease, now_ms=NOW)
    # Of the snapshots at 2, 4 and 6 two are kept, and the changes after the older of them.
    assert store.last_snapshot_sequence() == 6
    with pytest.raises(MetadataConflictError, match="load the metadata again"):
        store.changes_after(images[2].position)
    assert store.load() == images[6]
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE semel_metadata_snapshots SET payload = '{' WHERE sequence = 6"))
    engine.dispose()
    assert store.load() == images[6]
    with pytest.raises(MetadataConflictError):
        store.write_snapshot(images[6], lease=lease, now_ms=NOW)
    store.append([ids(6000)], after=images[6].position, writer=writer, now_ms=NOW)
    assert store.load().next_producer_id == 7000


def test_tables_of_a_newer_version_are_refused(url: str, store: MetadataStore) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE semel_schema SET version = 99"))
    engine.dispose()
    with pytest.raises(FatalError, match="newer semel"):
        other(url)


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "oracle+cx://x"])
def test_urls_of_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"metadata\.url"):
        MetadataStore(url)


def test_an_unreachable_database_is_named_without_its_password() -> None:
    store = MetadataStore("postgresql://user:secret@127.0.0.1:1/db", timeout_ms=1000)
    with pytest.raises(MetadataUnavailableError) as caught:
        store.create()
    assert "user:***@127.0.0.1:1/db" in str(caught.value)
    assert "secret" not in str(caught.value)
    store.close()


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    store = MetadataStore(sqlite_url(str(tmp_path / "missing" / "x.sqlite")))
    with pytest.raises(MetadataUnavailableError, match="unable to open"):
        store.create()
    store.close()


# --- The shell around it: `Metadata` ----------------------------------------------------------------------------------


def metadata(url: str, clock: ManualClock, holder: str = "node 1", snapshot_changes: int = 1000) -> Metadata:
    return Metadata(MetadataStore(url), clock, holder=holder, lease_ms=60_000, snapshot_changes=snapshot_changes)


async def opened(url: str, holder: str = "node 1", snapshot_changes: int = 1000) -> Metadata:
    """Return the metadata of a node that may write."""
    made = metadata(url, ManualClock(), holder, snapshot_changes)
    await made.open()
    let_metadata_write(made, url, int(holder[-1]))
    return made


def test_changes_are_applied_once_they_are_written_and_told_in_order(url: str) -> None:
    async def main() -> None:
        one = await opened(url)
        told: list[tuple[Change, int]] = []
        one.add_listener(lambda change, image: told.append((change, image.sequence)))
        await asyncio.gather(*(one.change(lambda image: [ids(image.next_producer_id)]) for _ in range(5)))
        assert told == [(ids(number * 1000), number + 1) for number in range(5)]
        await one.change(lambda image: [])
        assert one.image.sequence == 5
        await one.close()
        again = await opened(url)
        assert again.image == one.image
        await again.close()

    asyncio.run(main())


def test_a_caller_that_goes_away_does_not_stop_a_write(url: str) -> None:
    async def main() -> None:
        one = await opened(url)
        caller = asyncio.ensure_future(one.change(lambda image: [ids(image.next_producer_id)]))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await one.change(lambda image: [])  # waits for its turn
        assert one.image.next_producer_id == 1000
        await one.close()

    asyncio.run(main())


def test_a_refusal_writes_nothing(url: str) -> None:
    async def main() -> None:
        one = await opened(url)

        def refuse(image: MetadataImage) -> list[Change]:
            raise FatalError("no")

        with pytest.raises(FatalError):
            await one.change(refuse)
        assert one.image.sequence == 0
        await one.close()

    asyncio.run(main())


def test_R5_a_deposed_controller_can_not_act_as_one_and_takes_the_lease_again_when_it_is_free(url: str) -> None:
    async def main() -> None:
        one = await opened(url, "node 1")
        await one.change(lambda image: [ids(0)], as_controller=True)
        pass_time(url, 60_000)
        two = await opened(url, "node 2")
        await two.change(lambda image: [ids(1000)], as_controller=True)
        for _ in range(2):
            with pytest.raises(NotControllerError):
                await one.change(lambda image: [ids(image.next_producer_id)], as_controller=True)
        assert (one.image.next_producer_id, one.controller_epoch, two.controller_epoch) == (1000, -1, 2)
        await one._keep_lease()
        assert one.controller_epoch == -1
        await two.close()
        await one._keep_lease()
        assert (one.controller_epoch, one.image.next_producer_id) == (3, 2000)
        await one.change(lambda image: [ids(2000)], as_controller=True)
        assert one.image.sequence == 3
        await one.close()

    asyncio.run(main())


def test_R4_a_node_that_is_about_to_stop_takes_the_lease_no_more(url: str) -> None:
    """It became the controller while it stopped, and took both others for dead."""

    async def main() -> None:
        one, two = await opened(url, "node 1"), await opened(url, "node 2")
        two.stand_down()
        await one.close()
        await two._keep_lease()
        assert two.controller_epoch == -1
        await two.change(lambda image: [ids(image.next_producer_id)])
        await two.close()

    asyncio.run(main())


def test_a_conflict_is_resolved_by_deciding_again(url: str) -> None:
    async def main() -> None:
        one, two = await opened(url, "node 1"), await opened(url, "node 2")
        await one.change(lambda image: [ids(image.next_producer_id)])
        await two.change(lambda image: [ids(image.next_producer_id)])
        assert (two.image.sequence, two.image.next_producer_id) == (2, 2000)
        await two.close()
        await one.close()

    asyncio.run(main())


def test_a_lost_answer_of_the_database_is_looked_up(
    url: str, lose_answers: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke after the commit: the change is there, so it happened."""

    async def main() -> None:
        one = await opened(url)

        def fail(*arguments: object, **named: object) -> None:
            raise MetadataUnavailableError("connection reset")

        lose_answers()
        await one.change(lambda image: [ids(0)])
        assert one.image.next_producer_id == 1000
        monkeypatch.setattr(MetadataStore, "append", fail)
        with pytest.raises(MetadataUnavailableError):
            await one.change(lambda image: [ids(1000)])
        assert one.image.sequence == 1
        await one.close()

    asyncio.run(main())


def test_snapshots_are_written_as_changes_come(url: str) -> None:
    async def main() -> None:
        one = await opened(url, snapshot_changes=3)
        for number in range(7):
            await one.change(lambda image, number=number: [ids(number * 1000)])  # type: ignore[misc]
        await one.close()
        store = MetadataStore(url)
        assert store.last_snapshot_sequence() == 6
        assert store.load().sequence == 7
        store.close()

    asyncio.run(main())


def test_a_node_waits_for_a_dead_ones_lease_and_gives_up_on_a_living_ones(url: str) -> None:
    class FastClock(ManualClock):
        """Every look at it is a fifth of a second later, in the database too."""

        def monotonic(self) -> float:
            self.advance(ms=200)
            pass_time(url, 200)
            return super().monotonic()

    async def main() -> None:
        dead = MetadataStore(url)
        dead.create()
        clock = FastClock()
        dead.acquire_lease("node 2", duration_ms=1000, now_ms=ManualClock.now_ms(clock))
        one = metadata(url, clock)
        one._lease_ms = 1000
        await one.open()
        await one.wait_until_alone(1)
        assert one.controller_epoch == 2
        await one.close()
        dead.acquire_lease("node 2", duration_ms=1_000_000, now_ms=ManualClock.now_ms(clock))
        two = metadata(url, clock)
        two._lease_ms = 1000
        await two.open()
        with pytest.raises(NotControllerError, match="node 2 is the controller"):
            await two.wait_until_alone(1)
        await two.close()
        dead.close()

    asyncio.run(main())
