"""The object store: the seam to it, and the one of S3, Google Cloud Storage, Azure and local directories (obstore)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.extras import MissingExtraError, imports_of_extra
from semel.runtime.setting import ConfigError
from semel.runtime.storage import Buffer
from semel.runtime.threads import Threads

T = TypeVar("T")

PIECE_BYTES: Final = 16 << 20
"""What one part of an upload has. What is smaller is one request."""
_PIECES_AT_ONCE: Final = 2
_CALLS_AT_ONCE: Final = 16
_BYTES_PER_TIMEOUT: Final = 32 << 20
_SCHEMES: Final = ("s3", "gs", "az", "file")
_SECRETS: Final = ("secret", "token", "password", "sas", "credential", "access_key", "account_key", "customer_key")
_RETRIES: Final = 4
_REASON_CHARS_MAX: Final = 300
_ANSWER: Final = re.compile(r"<Code>([^<]{1,100})</Code>\s*<Message>([^<]{1,500})</Message>")
"""What S3's protocol says has happened."""


class ObjectStoreError(RetriableError):
    """The object store did not do what it was asked for. What it was asked for may have been done all the same."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.KAFKA_STORAGE_ERROR)


class ObjectMissingError(ObjectStoreError):
    """There is no such object."""


class Level(NamedTuple):
    """The next part of each key behind a prefix, up to the next slash. In order."""

    folders: list[str]
    """Each with the prefix before it, and a slash at its end."""
    keys: list[str]


class ObjectStore(Protocol):
    """Objects by their keys. Each call raises `ObjectStoreError`."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        ...

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        """Write an object, in pieces: all of it is there, or nothing."""
        ...

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        """Return exactly so many bytes of an object. Raises `ObjectMissingError` where there is none."""
        ...

    async def size(self, key: str) -> int:
        """Return how many bytes an object has. Raises `ObjectMissingError` where there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object. One that is not there is no error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """Yield (key, size in bytes) of each object whose key begins so."""
        ...

    async def level(self, prefix: str) -> Level:
        """Return what is directly below a prefix, which is "" or ends with a slash."""
        ...

    def close(self) -> None:
        """Ask for nothing more."""
        ...


def open_store(url: str, *, timeout_ms: int, creates: bool = True) -> ObjectStore:
    """Return the store that remote.storage.url names. Raises `ConfigError`; nothing is asked of the store yet.

    creates: whether a directory that is not there is made
    """
    return BucketStore(url, timeout_s=timeout_ms / 1000, creates=creates)


class BucketStore:
    """A bucket, or a directory, under a prefix."""

    def __init__(self, url: str, *, timeout_s: float, creates: bool = True) -> None:
        parts = urlsplit(url)
        self.location: Final = parts._replace(query="", netloc=parts.netloc.rpartition("@")[2]).geturl()
        """Without options, and without what may be a password."""
        self._timeout_s = timeout_s
        self._creates = creates
        if parts.scheme not in _SCHEMES:
            raise ConfigError(
                "remote.storage.url must begin with s3://, gs://, az:// or file:///, for example s3://my-bucket/semel"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        secrets = [name for name in options if any(word in name.lower() for word in _SECRETS)]
        if secrets or parts.username or parts.password:
            raise ConfigError(
                f"remote.storage.url has {secrets[0] if secrets else 'a user'} in it, which is no place for secrets: "
                "set the store's environment variables, for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        try:
            with imports_of_extra("remote", "remote.storage.url"):
                import obstore
        except MissingExtraError as error:
            raise ConfigError(str(error)) from None
        self._obstore: Any = obstore
        self._threads = Threads(_CALLS_AT_ONCE, "semel-objects")
        self._store = self._open(parts._replace(query="").geturl(), parts.scheme, options)

    def _open(self, url: str, scheme: str, options: dict[str, str]) -> Any:
        from obstore.store import from_url

        try:
            if scheme == "file":
                if options:
                    raise ConfigError(f"remote.storage.url: a directory has no option {next(iter(options))!r}")
                if not self._creates and not os.path.isdir(urlsplit(url).path):
                    raise ConfigError(f"{self.location} can't be read: there is no such directory")
                return from_url(url, mkdir=self._creates, automatic_cleanup=True)
            make: Any = from_url
            client: dict[str, Any] = {"timeout": f"{self._timeout_s:.0f}s", "connect_timeout": "5s"}
            if options.get("endpoint", "").startswith("http://"):
                client["allow_http"] = True
            return make(
                url,
                config=options,
                client_options=client,
                retry_config={"max_retries": _RETRIES, "retry_timeout": _seconds(self._timeout_s)},
            )
        except ConfigError:
            raise
        except Exception as error:  # the library has no base class for all that it raises here
            raise ConfigError(f"remote.storage.url can't be used: {_reason(error)}") from None

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        # What comes in pieces is uploaded in parts, which takes three requests at least.
        body = b"".join(data) if size_bytes < PIECE_BYTES else data
        put = partial(self._obstore.put, chunk_size=PIECE_BYTES, max_concurrency=_PIECES_AT_ONCE)
        await self._ask(f"write {key}", partial(put, self._store, key, body), 1 + size_bytes / _BYTES_PER_TIMEOUT)

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""

        def read() -> bytes:
            return bytes(self._obstore.get_range(self._store, key, start=position, length=size_bytes))

        data = await self._ask(f"read {key}", read)
        if len(data) != size_bytes:
            raise ObjectStoreError(
                f"{self.location}: {key} has {len(data)} bytes at {position}, not the {size_bytes} that belong there"
            )
        return data

    async def size(self, key: str) -> int:
        found = await self._ask(f"find {key}", partial(self._obstore.head, self._store, key))
        return int(found["size"])

    async def delete(self, key: str) -> None:
        with suppress(ObjectMissingError):
            await self._ask(f"delete {key}", partial(self._obstore.delete, self._store, key))

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        pages = await self._ask(f"list {prefix}", partial(self._obstore.list, self._store, prefix))
        while page := await self._ask(f"list {prefix}", partial(next, pages, None)):
            for one in page:
                yield one["path"], one["size"]

    async def level(self, prefix: str) -> Level:
        call = partial(self._obstore.list_with_delimiter, self._store, prefix or None)
        found = await self._ask(f"list {prefix}", call)
        return Level(
            sorted(f"{folder}/" for folder in found["common_prefixes"]), sorted(one["path"] for one in found["objects"])
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _ask(self, what: str, call: Callable[[], T], times: float = 1.0) -> T:
        """Call the library in a thread of ours. Its calls for asyncio come back by threads of its own, and a program
        that ends just then is aborted.
        """
        try:
            async with asyncio.timeout(2 * self._timeout_s * times):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except FileNotFoundError:
            raise ObjectMissingError(f"{self.location} does not have the object: it could not {what}") from None
        except TimeoutError:
            raise ObjectStoreError(f"{self.location} did not {what} in time") from None
        except (OSError, ValueError, self._obstore.exceptions.BaseError) as error:
            raise ObjectStoreError(f"{self.location} could not {what}: {_reason(error)}") from error


def longest_upload_ms(size_bytes: int, timeout_ms: int) -> float:
    """Return for how long at most an upload of so many bytes is under way: after that it has failed."""
    return 2 * timeout_ms * (1 + size_bytes / _BYTES_PER_TIMEOUT)


def _seconds(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)


def _reason(error: Exception) -> str:
    """Return what the library says has happened, without the address and the attempts that it says before it, and
    without what follows the first line: that is its own state, printed.
    """
    text = str(error).strip()
    lines = text.splitlines()
    if not lines:
        return type(error).__name__
    if answer := _ANSWER.search(text):
        return f"{answer[1]}: {answer[2]}"[:_REASON_CHARS_MAX]
    before, dash, after = lines[0].rpartition("  - ")
    return (after.strip(" :") if dash and after.strip(" :") else before or lines[0])[:_REASON_CHARS_MAX]
