"""Between plain data (frozen dataclasses, named tuples) and protobuf messages whose fields have the same names."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def to_message(value: Any, message: M) -> M:
    """Set the fields of `message` to those of `value`, and return it. None is left out."""
    for name in _hints(type(value)):
        item = getattr(value, name)
        if item is None:
            continue
        if _is_plain_data(type(item)):
            field = getattr(message, name)
            field.SetInParent()
            to_message(item, field)
        elif isinstance(item, tuple):
            field = getattr(message, name)
            for each in item:
                if _is_plain_data(type(each)):
                    to_message(each, field.add())
                else:
                    field.append(each)
        else:
            setattr(message, name, item)
    return message


def from_message(message: Message, kind: type[T]) -> T:
    """Return the fields of `message` as a `kind`."""
    return kind(**{name: _value(message, name, hint) for name, hint in _hints(kind).items()})


def _value(message: Message, name: str, hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        if not message.HasField(name):
            return None
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    value = getattr(message, name)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return tuple(from_message(each, item) if _is_plain_data(item) else each for each in value)
    return from_message(value, hint) if _is_plain_data(hint) else value


def _hints(kind: type) -> dict[str, Any]:
    hints = _known_hints.get(kind)
    if hints is None:
        hints = _known_hints[kind] = get_type_hints(kind)
    return hints


_known_hints: Final[dict[type, dict[str, Any]]] = {}


def _is_plain_data(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
