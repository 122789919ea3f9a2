"""The object stores that there are: a directory, and S3 as moto plays it."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.tiers.object_store import BucketStore, ObjectMissingError, ObjectStoreError
from semel.runtime.setting import ConfigError


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BucketStore:
    if request.param == "directory":
        return BucketStore(f"file://{tmp_path}/objects", timeout_s=20)
    return BucketStore(request.getfixturevalue("s3_url"), timeout_s=20)


def test_objects_are_written_read_listed_and_deleted(store: BucketStore) -> None:
    async def test() -> None:
        pieces = [bytes([number % 251]) * 100_000 for number in range(130)]  # several parts of an upload
        whole = b"".join(pieces)
        await store.put("a/b/large", iter(pieces), len(whole))
        await store.put("a/b/small", iter([b"xyz"]), 3)
        await store.put("c", iter([b"c"]), 1)
        assert await store.read("a/b/large", 0, len(whole)) == whole
        assert await store.read("a/b/large", 99_990, 20) == whole[99_990:100_010]
        assert await store.read("a/b/small", 0, 0) == b""
        found = [one async for one in store.list("a/b/")]
        assert sorted(found) == [("a/b/large", len(whole)), ("a/b/small", 3)]
        await store.delete("a/b/large")
        await store.delete("a/b/large")
        assert [one async for one in store.list("a/b")] == [("a/b/small", 3)]
        await store.delete("a/b/small")
        await store.delete("c")

    asyncio.run(test())


def test_what_is_not_there_is_an_error_that_says_so(store: BucketStore) -> None:
    async def test() -> None:
        with pytest.raises(ObjectMissingError, match="none/of/this"):
            await store.read("none/of/this", 0, 10)
        await store.put("short", iter([b"12345"]), 5)
        with pytest.raises(ObjectStoreError):
            await store.read("short", 3, 10)

    asyncio.run(test())


def test_an_upload_whose_source_fails_leaves_nothing(store: BucketStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 1000
        raise ValueError("the source is damaged")

    async def test() -> None:
        with pytest.raises((ObjectStoreError, ValueError)):
            await store.put("half", broken(), 2_000)
        assert [one async for one in store.list("half")] == []

    asyncio.run(test())


def test_a_store_that_is_away_is_an_error_in_time_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASECRETSECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-word")
    store = BucketStore("s3://bucket?region=us-east-1&endpoint=http://127.0.0.1:9", timeout_s=1)

    async def test() -> None:
        async with asyncio.timeout(30):
            with pytest.raises(ObjectStoreError) as refused:
                await store.read("key", 0, 10)
        assert "s3://bucket could not read key" in refused.value.message
        assert "SECRET" not in refused.value.message
        assert "secret" not in refused.value.message

    asyncio.run(test())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/x", "must begin with"),
        ("bucket", "must begin with"),
        ("s3://somebody:hunter2@bucket", "no place for secrets"),
        ("s3://bucket?secret_access_key=abc", "no place for secrets"),
        ("s3://bucket?no_such_option=1", "can't be used"),
        ("file:///tmp/x?region=1", "no option 'region'"),
        ("s3:///prefix", "can't be used"),
    ],
)
def test_a_url_that_can_not_work_is_refused_before_the_start(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        BucketStore(url, timeout_s=1)
    assert "remote.storage.url" in refused.value.message
    assert "hunter2" not in refused.value.message
    assert "abc" not in refused.value.message


def test_where_the_library_is_not_installed_the_command_that_installs_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "obstore":
            raise ModuleNotFoundError("No module named 'obstore'", name="obstore")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install"):
        BucketStore("s3://bucket", timeout_s=1)
