"""Errors of single items in answers of the control plane, as errors of the one tree."""

from __future__ import annotations

from semel.protocol.errors import ErrorCode, FatalError, SemelError, error_for
from semel.protocol.v1 import common_pb2


def check_item(error: common_pb2.Error, what: str) -> None:
    """Raise the exception for the error of one item of an answer, if it has one. `what` names the item."""
    if error.code:
        raise item_error(error, what)


def item_error(error: common_pb2.Error, what: str) -> SemelError:
    """Return the exception for the error of one item of an answer."""
    try:
        code = ErrorCode(error.code)
    except ValueError:
        return FatalError(f"{what}: unknown error {error.code} {error.name}: {error.message}")
    said = error.message or error.name or code.name
    names_it = what in said or what.replace("'", "") in said  # "topic 'orders': topic orders already exists"
    return error_for(code, said if names_it else f"{what}: {said}")
