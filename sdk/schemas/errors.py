"""What goes wrong with schemas."""

from __future__ import annotations

from semel.protocol.errors import FatalError


class SchemaRegistryError(FatalError):
    """A schema registry refuses a request. Repeating it will not help.

    status:     of HTTP
    error_code: the registry's own, for example 40401: no such subject; 409: not compatible
    """

    def __init__(self, message: str, status: int, error_code: int) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code

    def __reduce__(self) -> tuple[type[SchemaRegistryError], tuple[str, int, int]]:  # type: ignore[override]
        return type(self), (self.message, self.status, self.error_code)


class SchemaDataError(FatalError):
    """A value does not fit its schema, or the bytes of a record can't be read."""
