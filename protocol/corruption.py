"""The errors for bytes that are not what they claim to be: batches from the wire or the disk, serialised structs."""

from __future__ import annotations

from semel.protocol.errors import ErrorCode, RetriableError


class CorruptDataError(RetriableError):
    """Bytes do not follow the format they should be in. Reading or sending them again may give whole ones."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(message, code)


class CorruptBatchError(CorruptDataError):
    """A record batch is broken: its length, checksum, counts, compression, or a record in it."""
