"""Three nodes of an older version are replaced one after the other while a pipeline works on them, and go back, too.

The older version is the last one of this repository's history with a lower version of the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import Clients
from cluster_run import cluster_run
from database_servers import DatabaseServer, postgresql  # noqa: F401 (fixture)
from longer_runs import given
from node_processes import wait_for
from older_version import MixedNodes, OlderVersion, older_version
from typer.testing import CliRunner

import semel
from semel.broker.metadata.changes import METADATA_VERSION
from semel.broker.metadata.store import MetadataStore
from semel.cli.main import app
from semel.cli.serve_exit import ServeExit

CLIENTS = list(Clients) if given("SEMEL_UPGRADE_CLIENTS", "semel") == "all" else [Clients.SEMEL]
pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> OlderVersion:
    return older_version(tmp_path_factory.mktemp("older") / "tree")


class Upgraded(MixedNodes):
    """Three that begin with the older version."""

    def __init__(self, folder: Path, older: OlderVersion, url: str) -> None:
        # Snapshots are often: one that a node of this version has written is read by an older one.
        super().__init__(folder, older, **{"metadata.url": url, "metadata.snapshot.changes": 5})
        self._url = url
        self.old = {1, 2, 3}
        assert self.version_of(1) == older.metadata_version, "nodes run the tree of the older version"
        self.start(1, 2, 3)

    def metadata_version(self) -> int:
        store = MetadataStore(self._url)
        try:
            return store.load().version
        finally:
            store.close()

    def wait_until_whole(self) -> None:
        """Do what docs/cluster.md asks for before the next node is replaced."""
        asked = ["cluster", "status", "--bootstrap", self.bootstrap]
        wait_for(lambda: CliRunner().invoke(app, asked).exit_code == 0, "`semel cluster status` exits with 0")


@pytest.fixture
def nodes(tmp_path: Path, older: OlderVersion, postgresql: DatabaseServer) -> Iterator[Upgraded]:  # noqa: F811
    running = Upgraded(tmp_path / "cluster", older, postgresql.new_database())
    try:
        yield running
    finally:
        running.close()


@pytest.mark.drawn(1, "rolling upgrades")
@pytest.mark.parametrize("clients", CLIENTS)
def test_E1_nodes_are_replaced_by_a_newer_version_and_nothing_is_lost_or_there_twice(
    nodes: Upgraded, older: OlderVersion, tmp_path: Path, clients: Clients
) -> None:
    """The last node raises the metadata's version; from then on one of the older version is refused, and says why."""
    with cluster_run(nodes, tmp_path, "upgraded", clients) as run:
        run.more()
        for node_id in (1, 2, 3):
            assert nodes.metadata_version() == older.metadata_version
            nodes.replace(node_id, old=False)
            nodes.wait_until_whole()
            run.more()
        wait_for(lambda: nodes.metadata_version() == METADATA_VERSION, "the version is raised")
        nodes.stop(2)
        nodes.old = {2}
        code, said = nodes.refusal(2)
        assert code == ServeExit.METADATA, said
        assert f"version {METADATA_VERSION}, and this semel reads up to {older.metadata_version}" in said
        assert "Traceback" not in said
        run.more()
        nodes.old = set()
        nodes.start(2)
        nodes.wait_until_whole()
        run.assert_exactly_once()


@pytest.mark.drawn(1, "rolling upgrades")
def test_E1_nodes_go_back_to_the_older_version_as_long_as_one_was_not_replaced(
    nodes: Upgraded, older: OlderVersion, tmp_path: Path
) -> None:
    """What the newer nodes have written, to the database and to their disks, is read by the older ones."""
    with cluster_run(nodes, tmp_path, "back") as run:
        run.more()
        for node_id, is_old in ((1, False), (2, False), (1, True), (2, True)):
            nodes.replace(node_id, old=is_old)
            nodes.wait_until_whole()
            with semel.Admin(nodes.bootstrap) as admin:  # the metadata changes under each of them
                admin.create_topic(f"made-with-{node_id}-{'old' if is_old else 'new'}", partitions=1)
            run.more()
            assert nodes.metadata_version() == older.metadata_version
        run.assert_exactly_once()
