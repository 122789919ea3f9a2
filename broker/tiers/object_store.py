"""The object store: the seam to it, and the one of S3, Google Cloud Storage, Azure and local directories (obstore)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.extras import MissingExtraError, imports_of_extra
from semel.runtime.setting import ConfigError
from semel.runtime.storage import Buffer

PIECE_BYTES: Final = 8 << 20
"""What one part of an upload has."""
_PIECES_AT_ONCE: Final = 4
_BYTES_PER_TIMEOUT: Final = 32 << 20
_SCHEMES: Final = ("s3", "gs", "az", "file")
_SECRETS: Final = ("secret", "token", "password", "sas", "credential", "access_key", "account_key", "customer_key")
_RETRIES: Final = 4
_REASON_CHARS_MAX: Final = 300


class ObjectStoreError(RetriableError):
    """The object store did not do what it was asked for. What it was asked for may have been done all the same."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.KAFKA_STORAGE_ERROR)


class ObjectMissingError(ObjectStoreError):
    """There is no such object."""


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

    async def delete(self, key: str) -> None:
        """Delete an object. One that is not there is no error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """Yield (key, size in bytes) of each object whose key begins so."""
        ...


def open_store(url: str, *, timeout_ms: int) -> ObjectStore:
    """Return the store that remote.storage.url names. Raises `ConfigError`; nothing is asked of the store yet."""
    return BucketStore(url, timeout_s=timeout_ms / 1000)


class BucketStore:
    """A bucket, or a directory, under a prefix."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        self.location: Final = parts._replace(query="", netloc=parts.netloc.rpartition("@")[2]).geturl()
        """Without options, and without what may be a password."""
        self._timeout_s = timeout_s
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
        self._store = self._open(parts._replace(query="").geturl(), parts.scheme, options)

    def _open(self, url: str, scheme: str, options: dict[str, str]) -> Any:
        from obstore.store import from_url

        try:
            if scheme == "file":
                if options:
                    raise ConfigError(f"remote.storage.url: a directory has no option {next(iter(options))!r}")
                return from_url(url, mkdir=True, automatic_cleanup=True)
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
        async with self._asking(f"write {key}", 1 + size_bytes / _BYTES_PER_TIMEOUT):
            await self._obstore.put_async(
                self._store, key, data, chunk_size=PIECE_BYTES, max_concurrency=_PIECES_AT_ONCE
            )

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""
        async with self._asking(f"read {key}"):
            found = await self._obstore.get_range_async(self._store, key, start=position, length=size_bytes)
        data = bytes(found)
        if len(data) != size_bytes:
            raise ObjectStoreError(
                f"{self.location}: {key} has {len(data)} bytes at {position}, not the {size_bytes} that belong there"
            )
        return data

    async def delete(self, key: str) -> None:
        try:
            async with self._asking(f"delete {key}"):
                await self._obstore.delete_async(self._store, key)
        except ObjectMissingError:
            pass

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        async with self._asking(f"list {prefix}", 1_000):
            async for page in self._obstore.list(self._store, prefix):
                for one in page:
                    yield one["path"], one["size"]

    @asynccontextmanager
    async def _asking(self, what: str, times: float = 1.0) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(2 * self._timeout_s * times):
                yield
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
    """Return the first line of what the library says: the others are its own state, printed."""
    lines = str(error).strip().splitlines()
    return lines[0][:_REASON_CHARS_MAX] if lines else type(error).__name__
