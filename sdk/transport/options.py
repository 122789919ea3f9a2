"""Options of clients: checked at once, with a message that names the nearest right one."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

from semel.protocol.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_ADDRESS = re.compile(r"^(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\s:/@\[\]]+)):(?P<port>\d{1,5})$")


class NotPicklable:
    """What has a thread and connections, or stands for them: it belongs to the process that made it."""

    __slots__ = ()
    _in_place_of_pickling: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} can't be pickled or copied: {self._in_place_of_pickling}")


def checked_names(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with keyword options, so that an unknown one is refused with the nearest right name."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name != "self"
    ]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                is_class = function.__name__ == "__init__" and args
                owner = type(args[0]).__name__ if is_class else function.__qualname__
                elsewhere = getattr(args[0], "_options_elsewhere", {}) if is_class else {}
                advice = elsewhere.get(name) or nearest(name, known)
                raise UsageError(f"{owner} has no option {name!r}; {advice}")
        return function(*args, **kwargs)

    return checked


def option_names(kind: type) -> list[str]:
    """Return the names of the options that a class takes."""
    parameters = inspect.signature(kind).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the advice for an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name.replace(".", "_"), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(known)}"


def check_int(name: str, value: object, minimum: int, maximum: int = 2**31 - 1) -> int:
    """Return `value` if it is an integer between the bounds, both included. Raises `UsageError`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"option {name} must be an integer, not {type(value).__name__} {value!r}")
    if not minimum <= value <= maximum:
        raise UsageError(f"option {name} must be between {minimum} and {maximum}, not {value}")
    return value


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is True or False. Raises `UsageError`."""
    if not isinstance(value, bool):
        raise UsageError(f"option {name} must be True or False, not {type(value).__name__} {value!r}")
    return value


def check_text(name: str, value: object) -> str:
    """Return `value` if it is text that is not empty. Raises `UsageError`."""
    if not isinstance(value, str):
        raise UsageError(f"option {name} must be text (str), not {type(value).__name__} {value!r}")
    if not value:
        raise UsageError(f"option {name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"option {name} can't be sent: {value!r} has half a character at {error.start}") from None
    return value


def check_name(name: str, value: object, bytes_max: int) -> str:
    """Return `value` if it is text that a node takes for a name. Raises `UsageError`."""
    text = check_text(name, value)
    size = len(text.encode())
    if size > bytes_max:
        raise UsageError(f"option {name} has at most {bytes_max} bytes, not {size}: {text[:40]!r}...")
    return text


def check_callable(name: str, value: Any) -> Any:
    """Return `value` if it is None or can be called. Raises `UsageError`."""
    if value is not None and not callable(value):
        raise UsageError(f"option {name} must be a function, not {type(value).__name__} {value!r}")
    return value


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`. Raises `UsageError` with the nearest one."""
    if not isinstance(value, str) or value not in choices:
        close = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
        advice = f"did you mean {close[0]!r}?" if close else f"use one of: {', '.join(choices)}"
        raise UsageError(f"option {name} can't be {value!r}; {advice}")
    return value


def parse_bootstrap(bootstrap: object) -> tuple[str, ...]:
    """Return the gRPC addresses, each "host:port", of text with commas or a sequence of text. Raises `UsageError`.

    >>> parse_bootstrap("localhost:9094, [::1]:9094")
    ('localhost:9094', '[::1]:9094')
    """
    if isinstance(bootstrap, str):
        parts = [part.strip() for part in bootstrap.split(",") if part.strip()]
    elif isinstance(bootstrap, Sequence) and all(isinstance(part, str) for part in bootstrap):
        parts = [part.strip() for part in bootstrap]
    else:
        raise UsageError(
            f'bootstrap must be text such as "localhost:9094", not {type(bootstrap).__name__} {bootstrap!r}'
        )
    if not parts:
        raise UsageError('bootstrap is empty; give the address of a node\'s gRPC listener, such as "localhost:9094"')
    for part in parts:
        found = _ADDRESS.match(part)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise UsageError(
                f"bootstrap address {part!r} is not HOST:PORT; give the address of a node's gRPC listener, "
                'such as "localhost:9094"'
            )
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What every client has. Times in milliseconds.

    api_timeout_ms:           how long one call of the API may take, retries included
    request_timeout_ms:       how long one attempt at one node may take
    connect_timeout_ms:       how long to try where no node has ever answered: it is more likely a wrong address
    retry_backoff_ms:         the first pause before a retry; doubles up to retry_backoff_max_ms, with jitter
    metadata_max_age_ms:      when what is known about topics and nodes is asked for again
    connection_in_flight_max: how many requests may wait for their answer on one data connection
    """

    addresses: tuple[str, ...]
    client_id: str = "semel"
    api_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 3_000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    connection_in_flight_max: int = 64

    @classmethod
    def checked(cls, bootstrap: object, **options: Any) -> ClientOptions:
        """Return the options, each checked. Raises `UsageError`."""
        for name, value in options.items():
            if name == "client_id":
                check_text(name, value)
            else:
                check_int(name, value, 1)
        return cls(parse_bootstrap(bootstrap), **options)
