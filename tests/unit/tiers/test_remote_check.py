"""`semel log verify --remote` reads all that a cluster has in its remote storage."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from running_node import create_topic
from tiered_topic import NOTHING_LOCAL, QUICK, fill, left_the_disk, serving, tier_of
from typer.testing import CliRunner

from semel.broker.config.node_config import NodeConfig
from semel.broker.metadata.store import METADATA_FILE
from semel.broker.node import Node
from semel.cli.main import app


def filled(folder: Path) -> tuple[str, list[Path]]:
    """Leave a data directory and its objects. Returns the URL of these, and their files in order."""
    url = f"file://{folder}/objects"

    async def main() -> list[str]:
        settings = {**QUICK, "remote_storage_url": url, "disk_min_free_bytes": 0}
        node = await Node.start(NodeConfig(data_dir=str(folder / "data"), **settings), listeners=())
        try:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 30)
            await left_the_disk(node)
            return [one.key for one in tier_of(node).remote.segments]
        finally:
            await node.stop(grace_ms=0)

    return url, [folder / "objects" / key for key in asyncio.run(main())]


def verified(folder: Path, url: str) -> tuple[int, dict[str, object], list[dict[str, str]]]:
    result = CliRunner().invoke(app, ["log", "verify", str(folder / "data"), "--remote", url, "--json"])
    report = json.loads(result.stdout)
    return result.exit_code, report["remote"], report["findings"]


def test_what_is_whole_is_called_so_and_counted(tmp_path: Path) -> None:
    url, files = filled(tmp_path)
    code, remote, findings = verified(tmp_path, url)
    assert (code, findings) == (0, [])
    assert remote["segments"] == len(files)
    assert 25 <= int(str(remote["records"])) < 30


def test_what_left_the_disk_for_the_store_is_not_called_lost_where_no_metadata_says_that_it_may(tmp_path: Path) -> None:
    """A node whose metadata is in a database elsewhere, verified without that."""
    filled(tmp_path)
    data = tmp_path / "data"
    for file in data.glob(f"{METADATA_FILE}*"):
        file.rename(tmp_path / file.name)
    result = CliRunner().invoke(app, ["log", "verify", str(data), "--json"])
    for file in tmp_path.glob(f"{METADATA_FILE}*"):
        file.rename(data / file.name)
    assert [one["path"] for one in json.loads(result.stdout)["findings"]] == [METADATA_FILE]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("missing", "the object is missing"),
        ("batch", "the batch at position 0 is not right"),
        ("index", "the index of"),
        ("short", "can't be read"),
        ("description", "does not end as a segment does"),
        ("another", "and its row"),
    ],
)
def test_L2_what_is_missing_or_damaged_is_named(tmp_path: Path, harm: str, says: str) -> None:
    url, files = filled(tmp_path)
    data = bytearray(files[2].read_bytes())
    if harm == "missing":
        files[2].unlink()
    elif harm == "short":
        files[2].write_bytes(data[:100])
    elif harm == "description":
        files[2].write_bytes(data[:-1] + b"?")
    elif harm == "another":
        data[data.index(b'"segment_id":"') + len(b'"segment_id":"')] ^= 1
        files[2].write_bytes(data)
    else:
        size = data.index(b'"size_bytes":') + len(b'"size_bytes":')
        batches = int(bytes(data[size : size + 10]).split(b",")[0])
        data[70 if harm == "batch" else batches + 3] ^= 1
        files[2].write_bytes(data)
    code, _, findings = verified(tmp_path, url)
    assert code == 1
    (found,) = findings
    assert (found["severity"], found["check"]) == ("error", "remote")
    assert says in found["what"]
    assert files[2].name in found["path"]


def test_an_object_that_nobody_needs_is_a_note(tmp_path: Path) -> None:
    url, files = filled(tmp_path)
    (files[0].parent / "orphan").write_bytes(b"x")
    code, _, findings = verified(tmp_path, url)
    assert code == 0
    (found,) = findings
    assert found["severity"] == "note"
    assert found["path"].endswith("/orphan")
