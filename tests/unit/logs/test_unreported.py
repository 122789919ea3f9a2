"""What starts found, and no registration has told yet, outlives them (R4, R5)."""

from __future__ import annotations

import asyncio
import errno

import pytest
from simulated_folder import CONFIG, TOPIC_ID, Node, append

from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.data_folder import OPENING_FILE
from semel.broker.logs.unreported import UNREPORTED_FILE, UnreportedRecovery
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import write_whole

KEY, OTHER = (TOPIC_ID, 0), (TOPIC_ID, 1)
PATH = f"/data/{UNREPORTED_FILE}"


def findings(node: Node) -> tuple[bool, bool, bool]:
    """Whether all is as the last run left it, and whether the partition, and another one, may be damaged."""
    unreported = node.logs.unreported
    return unreported.is_clean, unreported.may_be_damaged(KEY), unreported.may_be_damaged(OTHER)


async def crashed(node: Node) -> None:
    node.start()
    node.create()
    await append(node.get())
    node.storage.crash(power=False)


def test_R5_that_a_run_crashed_is_there_to_be_told_until_it_was() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        assert findings(node) == (True, False, False), "there was no run before the first one"
        await node.logs.close()
        await crashed(node)
        for was_clean in (False, True, True):
            node.start()
            assert (node.logs.recovery.clean, findings(node)) == (was_clean, (False, False, False))
            await node.logs.close()
        node.start()
        node.logs.unreported.reported(())
        await node.logs.close()
        node.storage.crash(power=True)
        node.start()
        assert findings(node) == (True, False, False)
        node.logs.unreported.reported(())
        await node.logs.close()

    asyncio.run(run())


def test_R4_what_was_lost_is_there_to_be_told_until_it_was() -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(disk_min_free_bytes=0, journal_file_bytes=200))
        node.start()
        node.create()
        await append(node.get())
        await node.logs.maintenance.flush()
        await append(node.get())
        node.storage.crash(power=False)
        node.storage.open("/data/orders-0/00000000000000000000.log").truncate(0)
        for _ in range(2):
            node.start()
            assert findings(node) == (False, True, False)
            await node.logs.close()
        node.start()
        assert not node.get().log.recovered_damage, "this start does not find it again"
        node.logs.unreported.reported(())
        await node.logs.close()
        node.start()
        assert findings(node) == (True, False, False)
        await node.logs.close()

    asyncio.run(run())


def test_R4_a_note_that_cannot_be_read_says_the_worst_of_all_replicas(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node()
        await crashed(node)
        node.start()
        await node.logs.close()
        file = node.storage.open(PATH)
        file.truncate(5)
        for _ in range(2):  # the second start reads what the first one wrote in its place
            node.start()
            assert findings(node) == (False, True, True)
            await node.logs.close()
        node.start()
        node.logs.unreported.reported(())
        await node.logs.close()
        node.start()
        assert findings(node) == (True, False, False)
        await node.logs.close()

    asyncio.run(run())
    assert "can't be read, so each replica here counts as one that may lack records" in caplog.text


def test_R5_a_start_that_cannot_write_the_note_finds_the_same_again() -> None:
    """Where it were not written, the recovery that follows would hide what there is to tell."""

    async def run() -> None:
        node = Node()
        await crashed(node)
        node.storage.fail_next("append", OSError(errno.ENOSPC, "No space left on device"), path_part=UNREPORTED_FILE)
        with pytest.raises(OSError, match="No space"):
            node.start()
        node.start()
        assert findings(node) == (False, False, False)
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("times", [1, 2])
def test_R1_what_a_start_found_after_a_clean_stop_is_found_again_where_it_was_killed_before_it_noted_it(
    times: int,
) -> None:
    """Otherwise it looks like any tail that a crash leaves, which a replica may have been told to cut."""

    async def run() -> None:
        node = await stopped_and_damaged()
        for _ in range(times):
            node.storage.fail_next("append", OSError(errno.EIO, "killed"), path_part=UNREPORTED_FILE)
            with pytest.raises(OSError, match="killed"):
                open_shared(node)  # before it has repaired the log
            node.storage.crash(power=False)
        open_shared(node)
        assert node.logs.unreported.damaged_from(KEY) == 2
        await node.logs.close()
        assert not node.storage.exists(f"/data/{OPENING_FILE}")

    asyncio.run(run())


def test_R1_what_a_start_repaired_and_noted_is_known_to_the_next_one() -> None:
    """Another start would see a whole log: an empty batch stands for what is lost."""

    async def run() -> None:
        node = await stopped_and_damaged()
        node.storage.fail_next("remove", OSError(errno.EIO, "killed"), path_part=OPENING_FILE)
        with pytest.raises(OSError, match="killed"):
            open_shared(node)
        node.storage.crash(power=False)
        open_shared(node)
        assert not node.get().log.recovered_damage, "this start does not find it again"
        assert node.logs.unreported.damaged_from(KEY) == 2

    asyncio.run(run())


async def stopped_and_damaged() -> Node:
    """Return a node that has stopped cleanly, and whose disk has lost the end of the third record since."""
    node = Node()
    node.start()
    node.create()
    for _ in range(3):
        await append(node.get())
    await node.logs.close()
    file = node.storage.open("/data/orders-0/00000000000000000000.log")
    file.truncate(file.size() - 5)
    return node


def open_shared(node: Node) -> None:
    """Start a node whose partitions others have, too."""
    node.logs = node.manager()
    node.logs.open(lambda tp, topic_id: CONFIG, is_only_replica=lambda tp, topic_id: False)


def test_R1_a_replica_that_has_lost_records_is_told_of_until_it_has_fetched_them_again() -> None:
    storage = SimulatedStorage()
    storage.make_folder("/data")
    storage.sync_folder("/")

    def started(**damaged: int) -> UnreportedRecovery:
        unreported = UnreportedRecovery(storage, PATH)
        unreported.found(clean=True, damaged={(TOPIC_ID, int(name[1:])): offset for name, offset in damaged.items()})
        return unreported

    unreported = started(p0=7, p1=9)
    unreported.reported({KEY})
    assert (unreported.damaged_from(KEY), unreported.damaged_from(OTHER)) == (7, None)
    storage.crash(power=True)
    assert started(p0=12).damaged_from(KEY) == 7, "the first place counts"
    assert started(p0=3).damaged_from(KEY) == 3
    unreported = started()
    assert (unreported.is_clean, unreported.may_be_damaged(KEY)) == (True, True)
    unreported.reported({KEY})
    unreported.repaired(OTHER)
    unreported.repaired(KEY)
    storage.crash(power=True)
    assert not storage.exists(PATH)
    assert started().damaged_from(KEY) is None


def test_R4_what_could_not_be_read_is_there_until_it_was_told_or_some_of_it_is_lost() -> None:
    storage = SimulatedStorage()
    storage.make_folder("/data")

    def opened(**found: object) -> UnreportedRecovery:
        again = UnreportedRecovery(storage, PATH)
        again.found(**{"clean": True, "damaged": {}, **found})  # type: ignore[arg-type]
        return again

    unreported = opened()
    unreported.reported((), not_read={KEY, OTHER})
    assert opened().not_read == {KEY, OTHER}
    assert opened(short={KEY: 3, (TOPIC_ID, 7): 3}).not_read == {OTHER}, "it is not shown that it has all"
    assert opened().damaged_from(KEY) == 3
    assert opened().damaged_from((TOPIC_ID, 7)) is None, "that was cut to follow its leader"
    again = opened()
    again.lost(OTHER, 5)
    assert (again.not_read, opened().not_read) == (set(), set())
    again.reported({OTHER}, not_read={KEY, OTHER})
    assert opened().not_read == {KEY}, "of the other one records are lost"
    again.was_read({KEY})
    again.repaired(OTHER)
    assert not storage.exists(PATH)


def test_R4_a_file_of_an_earlier_version_and_one_that_can_not_be_read_have_nothing_to_wait_for() -> None:
    storage = SimulatedStorage()
    storage.make_folder("/data")
    for content in (b'{"clean": true, "damaged": {}, "known": true}', b"{"):
        write_whole(storage, PATH, content)
        unreported = UnreportedRecovery(storage, PATH)
        unreported.found(clean=True, damaged={})
        assert unreported.not_read == set()


def test_R1_what_was_cut_is_not_cut_again_where_the_note_of_that_failed_and_another_log_has_lost_some() -> None:
    storage = SimulatedStorage()
    storage.make_folder("/data")
    unreported = UnreportedRecovery(storage, PATH)
    unreported.found(clean=True, damaged={KEY: 3})
    unreported.reported({KEY})
    unreported.was_cut(KEY)
    for operation in ("open", "remove"):
        storage.fail_next(operation, OSError(errno.EIO, "I/O error"), path_part=UNREPORTED_FILE)
    with pytest.raises(OSError, match="I/O error"):
        unreported.repaired(KEY)
    assert not unreported.is_written
    storage.fail_no_more()
    unreported.lost(OTHER, 5)
    assert (unreported.damaged_from(KEY), unreported.damaged_from(OTHER)) == (None, 5)
    again = UnreportedRecovery(storage, PATH)
    again.found(clean=True, damaged={})
    assert dict(again.damaged) == {OTHER: 5}


def test_R4_what_could_not_be_written_is_written_by_the_next_attempt() -> None:
    storage = SimulatedStorage()
    storage.make_folder("/data")
    unreported = UnreportedRecovery(storage, PATH)
    unreported.found(clean=True, damaged={})
    for attempt in (lambda: unreported.lost(KEY, 3), lambda: unreported.lost(KEY, 3), unreported.write_again):
        storage.fail_next("open", OSError(errno.EIO, "I/O error"), path_part=UNREPORTED_FILE)
        with pytest.raises(OSError, match="I/O error"):
            attempt()
        assert not unreported.is_written
    unreported.write_again()
    assert unreported.is_written
    again = UnreportedRecovery(storage, PATH)
    again.found(clean=True, damaged={})
    assert dict(again.damaged) == {KEY: 3}
