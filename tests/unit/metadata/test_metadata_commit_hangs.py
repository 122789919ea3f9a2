"""A transaction that never ends: PostgreSQL waits for a synchronous standby that is not there, or for a frozen node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
from registered_writer import let_metadata_write
from restored_database import engine_of, read_sql

from semel.broker.metadata.changes import Change, ProducerIdsAllocated
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.store import MetadataStore
from semel.broker.metadata.tables import CHANGES
from semel.runtime.clock import ManualClock

pytestmark = pytest.mark.postgresql

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
COMMITTED = "SELECT count(*) FROM semel_metadata_changes"


def more(image: MetadataImage) -> list[Change]:
    return [ProducerIdsAllocated(1, image.next_producer_id, 1000)]


@contextmanager
def without_its_standby(url: str) -> Iterator[Callable[[], None]]:
    """Let the server wait for a standby that is not there. Yields what brings it back."""

    def run(*statements: str) -> None:
        with engine_of(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def bring_back() -> None:
        run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

    run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    try:
        yield bring_back
    finally:
        bring_back()


async def opened(url: str, timeout_ms: int) -> Metadata:
    store = MetadataStore(url, timeout_ms=timeout_ms)
    made = Metadata(store, ManualClock(), holder="node 1", lease_ms=600_000, snapshot_changes=1000)
    await made.open()
    let_metadata_write(made, url)
    return made


async def read_until(url: str, statement: str, condition: Callable[[list[Any]], bool]) -> list[Any]:
    async with asyncio.timeout(120):
        while not condition(found := read_sql(url, statement)):  # noqa: ASYNC110  # another connection
            await asyncio.sleep(0.02)
    return found


def test_a_commit_that_no_standby_takes_ends_and_nobody_is_told_that_it_happened(postgresql_url: str) -> None:  # noqa: F811
    """statement_timeout does not end it. What was asked for is in the log later, or not: nobody may build on it."""
    url = postgresql_url

    async def main() -> None:
        one = await opened(url, timeout_ms=1000)
        await one.change(more)
        with without_its_standby(url) as bring_back:
            # a server that has not read its settings yet still commits
            refused = None
            async with asyncio.timeout(120):
                while refused is None:
                    try:
                        await one.change(more)
                    except MetadataUnavailableError as error:
                        refused = error
            known = one.image.next_producer_id
            assert (await one.refresh()).next_producer_id == known
            await read_until(url, WAITING, bool)
            bring_back()
            await read_until(url, WAITING, lambda found: not found)
        await read_until(url, COMMITTED, lambda found: found[0][0] == known // 1000 + 1)
        await one.change(more)
        assert one.image.next_producer_id == known + 2000
        await one.close()

    asyncio.run(main())


def test_a_wait_for_a_standby_that_was_canceled_is_no_success(
    postgresql_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PostgreSQL says COMMIT with a warning. The log decides, by another connection."""
    url = postgresql_url

    async def main() -> None:
        one = await opened(url, timeout_ms=600_000)
        await one.change(more)
        looks: list[bool | int] = []
        changes_after = one._store.changes_after

        def look(*arguments: Any) -> Any:
            looks.append(one._store._raw.closed)
            found = changes_after(*arguments)
            looks.append(one._store._raw.info.backend_pid)
            return found

        monkeypatch.setattr(one._store, "changes_after", look)
        with without_its_standby(url):
            pids: list[int] = []
            async with asyncio.timeout(120):
                while not pids:
                    change = asyncio.ensure_future(one.change(more))
                    while not change.done() and not pids:
                        await asyncio.sleep(0.02)
                        pids = [pid for (pid,) in read_sql(url, WAITING)]
            assert not change.done()
            read_sql(url, f"SELECT pg_cancel_backend({pids[0]})")
            image = await change
            assert image.next_producer_id == 1000 * read_sql(url, COMMITTED)[0][0]
            (was_dropped, after) = looks
            assert was_dropped
            assert after != pids[0]
        await one.change(more)
        await one.close()

    asyncio.run(main())


def test_R4_a_node_that_is_frozen_in_a_transaction_does_not_hold_the_others_up(postgresql_url: str) -> None:  # noqa: F811
    """Its connection stays, and with it its locks: nobody could elect leaders for what it led."""
    url = postgresql_url

    async def main() -> None:
        one = await opened(url, timeout_ms=1000)
        frozen = MetadataStore(url, timeout_ms=10_000)
        with suppress(MetadataUnavailableError), frozen._transaction() as transaction:
            transaction.exec_driver_sql(f"LOCK TABLE {CHANGES.name} IN EXCLUSIVE MODE")
            before = one.image.next_producer_id
            async with asyncio.timeout(120):
                while one.image.next_producer_id == before:
                    with suppress(MetadataUnavailableError):
                        await one.change(more)
        frozen.close()
        await one.close()

    asyncio.run(main())
