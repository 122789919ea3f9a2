"""`semel log dump` reads the objects of a remote storage: all that is in them, damage and all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from memory_objects import MemoryObjects
from running_node import create_topic
from s3_server import BUCKET
from tiered_topic import NOTHING_LOCAL, append, end_transaction, fill, left_the_disk, serving, tiered_node
from typer.testing import CliRunner

from semel.broker.inspection.dump import Dump
from semel.broker.inspection.dump_options import DumpOptions
from semel.broker.inspection.remote_objects import RemoteObjects
from semel.broker.inspection.text import line_of
from semel.broker.tiers.object_store import ObjectStoreError
from semel.broker.tiers.segment_object import read_description
from semel.cli.main import app
from semel.protocol.errors import UsageError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

COUNT = 30
Entries = list[dict[str, Any]]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Objects of the topics `t`, with an aborted transaction first, and `a-b`, with two partitions."""
    objects = MemoryObjects()

    async def main() -> None:
        async with tiered_node(tmp_path_factory.mktemp("copied"), objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await create_topic(node, "a-b", partitions=11, **NOTHING_LOCAL)
            await serving(node)
            await append(node, [b"never"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
            await end_transaction(node, ProducerIdAndEpoch(7, 0), committed=False)
            await fill(node, COUNT)
            await left_the_disk(node)
            for number in (2, 10):
                tp = TopicPartition("a-b", number)
                await serving(node, tp)
                await fill(node, 8, tp)
                await left_the_disk(node, tp)

    asyncio.run(main())
    return objects.objects


def keys_of(objects: dict[str, bytes], topic: str = "t") -> list[str]:
    return sorted(key for key in objects if key.split("/")[1].startswith(f"{topic}-"))


def store(objects: dict[str, bytes]) -> MemoryObjects:
    kept = MemoryObjects()
    kept.objects = dict(objects)
    return kept


def dump(objects: MemoryObjects, *what: str, **options: Any) -> tuple[Entries, int]:
    remote = RemoteObjects(objects)
    try:
        reading = Dump(list(what), DumpOptions(**options), remote=remote)
        return list(reading.entries()), reading.damaged
    finally:
        remote.close()


def of_kind(entries: Entries, kind: str) -> Entries:
    return [entry for entry in entries if entry["kind"] == kind]


def test_all_that_an_object_has_is_shown(copied: dict[str, bytes]) -> None:
    entries, damaged = dump(store(copied), "t:0", records=True)
    keys = keys_of(copied)
    assert damaged == 0
    assert [one["path"] for one in of_kind(entries, "file")] == [f"memory://{key}" for key in keys]
    for key, described in zip(keys, of_kind(entries, "object"), strict=True):
        said = read_description(copied[key])
        assert described.items() >= {name: said[name] for name in ("topic", "end_offset", "size_bytes")}.items()
    records = of_kind(entries, "record")
    end = read_description(copied[keys[-1]])["end_offset"]
    assert [one["offset"] for one in records] == list(range(end))
    assert records[2]["value"].startswith("00000.")
    (aborted, *_) = of_kind(entries, "aborted-transaction")
    assert (aborted["producer_id"], aborted["first_offset"], aborted["last_offset"]) == (7, 0, 1)
    assert {one["producer_id"] for one in of_kind(entries, "producer")} == {7}
    assert [one["position"] for one in of_kind(entries, "index-entry")] == [0] * len(keys)
    for entry in entries:
        json.dumps(entry)
        assert "\n" not in line_of(entry).strip("\n")


def test_partitions_and_topics_are_found_by_their_names(copied: dict[str, bytes]) -> None:
    def partitions(*what: str, **options: Any) -> list[tuple[str, int]]:
        shown = of_kind(dump(store(copied), *what, **options)[0], "object")
        return sorted({(one["topic"], one["partition"]) for one in shown})

    cluster = next(iter(copied)).split("/")[0]
    assert partitions("a-b") == [("a-b", 2), ("a-b", 10)]
    assert partitions("a-b:10") == [("a-b", 10)]
    assert partitions("a-b", partition=TopicPartition("a-b", 2)) == [("a-b", 2)]
    assert partitions(f"{cluster}/") == [("a-b", 2), ("a-b", 10), ("t", 0)]
    assert partitions("t", "a-b:2") == [("a-b", 2), ("t", 0)]
    in_order = [one["partition"] for one in of_kind(dump(store(copied), "a-b")[0], "object")]
    assert in_order == sorted(in_order), "by the partitions' numbers"


def test_one_object_is_read_by_its_key_or_by_what_a_dump_printed(copied: dict[str, bytes]) -> None:
    key = keys_of(copied)[3]
    for what in (key, f"memory://{key}"):
        (shown,) = of_kind(dump(store(copied), what)[0], "object")
        assert shown["segment_id"] == key.rpartition("-")[2]


def test_of_a_range_only_the_objects_that_have_it_are_read(copied: dict[str, bytes]) -> None:
    objects = store(copied)
    entries, _ = dump(objects, "t", records=True, first_offset=10, last_offset=12)
    assert [one["offset"] for one in of_kind(entries, "record")] == [10, 11, 12]
    assert not of_kind(entries, "object")
    assert not of_kind(entries, "producer")
    assert len(of_kind(entries, "file")) <= 2
    assert objects.requests["read"] <= 2 < len(keys_of(copied))


def test_a_producer_s_batches_and_aborted_transactions_alone(copied: dict[str, bytes]) -> None:
    entries, _ = dump(store(copied), "t", producer_id=7)
    assert {one["kind"] for one in entries} == {"file", "batch", "aborted-transaction", "producer"}
    assert [one["control"] for one in of_kind(entries, "batch")] == [None, "ABORT"]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("index", "the checksum of its index is wrong"),
        ("aborted", "the checksum of its list of aborted transactions is wrong"),
        ("producers", "the checksum of its snapshot of producers is wrong"),
    ],
)
def test_a_damaged_part_is_named_with_its_position_and_not_believed(
    copied: dict[str, bytes], part: str, says: str
) -> None:
    objects, key = store(copied), keys_of(copied)[0]
    position = read_description(copied[key])[part][0]
    harm(objects, key, position + 5)
    entries, damaged = dump(objects, key, records=True)
    (found,) = of_kind(entries, "damage")
    assert damaged == 1
    assert (found["position"], says in found["what"]) == (position, True)
    kind = {"index": "index-entry", "aborted": "aborted-transaction", "producers": "producer"}[part]
    assert not of_kind(entries, kind)
    assert of_kind(entries, "record") == of_kind(dump(store(copied), key, records=True)[0], "record")


def test_a_damaged_batch_is_shown_as_wrong_and_those_behind_it_as_they_are(copied: dict[str, bytes]) -> None:
    objects, key = store(copied), keys_of(copied)[2]
    harm(objects, key, 100)
    entries, damaged = dump(objects, key)
    assert damaged == 1
    assert [one["crc_ok"] for one in of_kind(entries, "batch")][:2] == [False, True]
    objects = store(copied)
    harm(objects, key, 8)  # its size
    entries, damaged = dump(objects, key)
    (found,) = of_kind(entries, "damage")
    assert (damaged, found["position"]) == (1, 0)
    assert "the next whole one begins at position" in found["what"]


@pytest.mark.parametrize(
    ("cut", "says"), [(1, "does not end as a segment does"), (700, "does not end"), (10**9, "does not end")]
)
def test_an_object_that_was_cut_off_shows_the_batches_that_it_has(
    copied: dict[str, bytes], cut: int, says: str
) -> None:
    objects, key = store(copied), keys_of(copied)[2]
    data = copied[key]
    objects.objects[key] = data[: max(0, len(data) - cut)]
    entries, damaged = dump(objects, key)
    found = of_kind(entries, "damage")
    assert damaged == len(found) >= 1
    assert says in found[0]["what"]
    whole = of_kind(dump(store(copied), key)[0], "batch")
    assert of_kind(entries, "batch") == (whole if cut == 1 else whole[: len(of_kind(entries, "batch"))])
    if cut == 1:
        (note,) = of_kind(entries, "note")
        assert note["position"] == read_description(data)["size_bytes"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"partition":0', b'"partitiom":0', "its description lacks what is needed to read it: KeyError('partition')"),
        (b'"size_bytes":', b'"size_bytes":1', "by its description its index lies at"),
        (b'{"version":1', b'{"version":[', "its description can't be read"),
    ],
)
def test_a_description_that_can_t_be_is_damage(copied: dict[str, bytes], old: bytes, new: bytes, says: str) -> None:
    objects, key = store(copied), keys_of(copied)[2]
    data = copied[key].replace(old, new)
    size = int.from_bytes(copied[key][-12:-8]) + len(new) - len(old)
    objects.objects[key] = data[:-12] + size.to_bytes(4) + data[-8:]
    entries, _ = dump(objects, key)
    assert says in of_kind(entries, "damage")[0]["what"]
    assert of_kind(entries, "batch") == of_kind(dump(store(copied), key)[0], "batch")


def test_an_object_under_the_name_of_another_is_damage(copied: dict[str, bytes]) -> None:
    objects, keys = store(copied), keys_of(copied)
    objects.objects[keys[1]] = copied[keys[2]]
    entries, damaged = dump(objects, "t")
    assert damaged == 1
    assert "by its name it has the offsets from" in of_kind(entries, "damage")[0]["what"]


def test_what_is_no_segment_is_damage(copied: dict[str, bytes]) -> None:
    objects = store({**copied, keys_of(copied)[0].rpartition("/")[0] + "/notes.txt": b"x"})
    entries, damaged = dump(objects, "t")
    assert damaged == len(of_kind(entries, "damage")) == 2, "neither its end nor a batch"


def test_an_object_that_goes_meanwhile_is_a_note(copied: dict[str, bytes]) -> None:
    objects, keys = store(copied), keys_of(copied)
    remote = RemoteObjects(objects)
    reading = Dump(["t"], remote=remote)
    entries = reading.entries()
    assert next(entries)["kind"] == "file"
    del objects.objects[keys[-1]]
    rest = list(entries)
    remote.close()
    assert rest[-1] == {"kind": "note", "what": "the object has gone meanwhile: a running node has deleted it"}
    assert reading.damaged == 0


def test_a_store_that_fails_ends_the_dump_with_an_error(copied: dict[str, bytes]) -> None:
    objects, keys = store(copied), keys_of(copied)
    objects.fault = lambda kind, key: "fail" if (kind, key) == ("read", keys[2]) else ""
    with pytest.raises(ObjectStoreError, match="failed to read"):
        dump(objects, "t")
    objects.fault = lambda kind, key: "fail" if kind == "list" else ""
    with pytest.raises(ObjectStoreError, match=r"Check that --remote is the nodes' remote.storage.url"):
        dump(objects, "t")


def test_what_is_not_there_is_said_with_what_is(copied: dict[str, bytes]) -> None:
    key = keys_of(copied)[0]
    for what in ("x", "t:1", f"{key}0", "t-0"):
        with pytest.raises(UsageError, match=r"segments of the topics a-b, t: give TOPIC, TOPIC:PARTITION, or a key"):
            dump(store(copied), what)
    with pytest.raises(UsageError, match=r"^t of t-1: memory:// has nothing of it"):
        dump(store(copied), "t", partition=TopicPartition("t", 1))
    with pytest.raises(UsageError, match="a partition is TOPIC:NUMBER, for example t:0"):
        dump(store(copied), "t:x")
    with pytest.raises(UsageError, match=r"has no segments at all: give the nodes' remote.storage.url"):
        dump(MemoryObjects(), "t")


def test_the_pieces_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch, copied: dict[str, bytes]) -> None:
    monkeypatch.setattr("semel.broker.inspection.remote_objects._WINDOW_BYTES", 300)
    sizes: list[int] = []
    objects = store(copied)
    read = objects.read

    async def measured(key: str, position: int, size_bytes: int) -> bytes:
        sizes.append(size_bytes)
        return await read(key, position, size_bytes)

    monkeypatch.setattr(objects, "read", measured)
    monkeypatch.setattr("semel.broker.inspection.object_dump._TAIL_BYTES", 20)
    monkeypatch.setattr("semel.broker.log.batch_scan.FAR_BYTES", 100)
    entries, damaged = dump(objects, "t")
    assert (damaged, of_kind(entries, "batch")) == (0, of_kind(dump(store(copied), "t")[0], "batch"))
    assert max(sizes) < max(map(len, copied.values())), "never a whole object"


# --- Files that were downloaded, and the command ----------------------------------------------------------------------


def test_a_downloaded_object_is_read_by_its_name_or_by_its_content(copied: dict[str, bytes], tmp_path: Path) -> None:
    key = keys_of(copied)[2]
    expected = dump(store(copied), key)[0][1:]
    named, renamed = tmp_path / key.rpartition("/")[2], tmp_path / "segment.bin"
    for path in (named, renamed):
        path.write_bytes(copied[key])
        assert list(Dump([str(path)]).entries())[1:] == expected
    assert list(Dump([str(tmp_path)]).entries())[1:] == expected, "of a directory, those with such names"
    renamed.write_bytes(copied[key][:-1])
    with pytest.raises(UsageError, match="an object of a remote storage"):
        list(Dump([str(renamed)]).entries())


def command(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["log", "dump", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_reads_a_directory_and_says_what_is_wrong(copied: dict[str, bytes], tmp_path: Path) -> None:
    for key, data in copied.items():
        path = tmp_path / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    url = f"file://{tmp_path}/objects"
    code, shown, _ = command("--remote", url, "t:0", "--records", "--format", "json", "--offset", "5")
    assert code == 0
    assert [one["offset"] for one in of_kind([*map(json.loads, shown.splitlines())], "record")] == [5]
    harmed = tmp_path / "objects" / keys_of(copied)[0]
    harmed.write_bytes(harmed.read_bytes()[:-1])
    code, shown, said = command("--remote", url, "t:0")
    assert code == 1
    assert "DAMAGED at position" in shown
    assert "`semel log verify DIR --remote URL` says more" in said
    assert command("--remote", url, "u")[0] == 2
    code, _, said = command("--remote", f"file://{tmp_path}/wrong", "t")
    assert (code, "there is no such directory" in said, (tmp_path / "wrong").exists()) == (2, True, False)
    code, _, said = command("--remote", "http://host/objects", "t")
    assert (code, "must begin with s3://" in said) == (2, True)
    code, _, said = command("s3://bucket/prefix")
    assert (code, "--remote URL TOPIC:PARTITION" in said) == (2, True)


def test_the_command_reads_s3_and_names_a_bucket_that_is_not_there(copied: dict[str, bytes], s3_url: str) -> None:
    endpoint = s3_url.partition("endpoint=")[2]
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    for key in keys_of(copied)[:2]:
        client.put_object(Bucket=BUCKET, Key=f"prefix/{key}", Body=copied[key])
    code, shown, said = command("--remote", s3_url, "t", "--format", "json")
    assert (code, said) == (0, "")
    assert len(of_kind([*map(json.loads, shown.splitlines())], "object")) == 2
    code, _, said = command("--remote", s3_url.replace(BUCKET, "no-such-bucket"), "t")
    assert code == 3
    assert "NoSuchBucket: The specified bucket does not exist. Check that --remote is the nodes'" in said


def harm(objects: MemoryObjects, key: str, position: int) -> None:
    data = bytearray(objects.objects[key])
    data[position] ^= 1
    objects.objects[key] = bytes(data)
