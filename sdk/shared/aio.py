"""The asyncio face of shared transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.aio import RecordSender
from semel.sdk.producer.transaction import GroupMetadata
from semel.sdk.shared.transaction import SharedCommit, SharedHandle
from semel.sdk.shared.writer import SharedWriterBase, SharedWriterId
from semel.sdk.transport.client import ClientCore

T = TypeVar("T")


class SharedWriter(SharedWriterBase, RecordSender):
    """Writes in a shared transaction, from asyncio. See `semel.SharedWriter`."""

    async def flush(self) -> None:
        """Wait until everything sent before is acknowledged. Raises as `semel.SharedWriter.flush`."""
        await self._run(self._part.flush())

    async def finish(self) -> SharedWriterId:
        """Flush, close, and return what the committer is to name. See `semel.SharedWriter.finish`."""
        if not self._core.client.io.closed:
            await self._run(self._part.finish())
            await self.close()
        return self._finished()

    async def __aenter__(self) -> Self:
        self._core.client.io.check()
        self._begin_trace()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_trace()
        try:
            await self.close()
        except SemelError as while_closing:
            if error is None:
                raise
            error.add_note(f"and closing the writer failed: {while_closing}")


class SharedTransaction(SharedHandle):
    """`semel.SharedTransaction` for asyncio: the same arguments, results and errors, with `await`."""

    __slots__ = ()

    @classmethod
    async def open(
        cls,
        bootstrap: str,
        key: str,
        *,
        token: str,
        sequence: int | None = None,
        timeout_ms: int = 300_000,
        attempt: str | None = None,
        **options: Any,
    ) -> SharedTransaction:
        """Begin an attempt, or learn that there is nothing to do. See `semel.SharedTransaction.open`."""
        shared = cls(bootstrap, key, token=token, sequence=sequence, timeout_ms=timeout_ms, attempt=attempt, **options)
        shared.committed = await shared._run(shared._open)
        return shared

    async def join(self, **options: Any) -> SharedWriter:
        """Join as a writer. See `semel.SharedTransaction.join`."""
        request = self._open_request(writer=True)
        writer = SharedWriter(self._bootstrap, request, self._trace, **self._writer_options(options))
        try:
            await writer._run(writer._part.join())
        except BaseException:
            await writer.close()
            raise
        return writer

    async def commit(
        self,
        members: Iterable[SharedWriterId],
        *,
        payload: bytes = b"",
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        group: GroupMetadata | str | None = None,
    ) -> SharedCommit:
        """Commit exactly what `members` wrote. See `semel.SharedTransaction.commit`."""
        return await self._run(self._committing(members, payload, offsets, group))

    async def abort(self) -> None:
        """Abort the attempt. Changes nothing once it is decided."""
        await self._run(self._abort)

    async def _run(self, call: Callable[[ClientCore], Coroutine[Any, Any, T]]) -> T:
        client = ClientCore("SharedTransaction", self._client_options)
        try:
            return await asyncio.wrap_future(client.io.submit(call(client)))
        finally:
            await asyncio.to_thread(client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort what was not committed. Nothing that is decided changes."""
        if self.committed is not None:
            return
        try:
            await self.abort()
        except SemelError as while_aborting:
            if error is None:
                raise
            error.add_note(f"and the attempt could not be aborted: {while_aborting}")
