"""Options of clients: checked at once, with a message that names the nearest right one."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn, ParamSpec, TypeVar, cast

from semel.protocol.errors import UsageError
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.schemes import SCHEMES, TLS_PREFIX, hidden_password, scheme_of, without_scheme
from semel.runtime.backoff import Backoff
from semel.sdk.transport.in_process import SCHEME
from semel.sdk.transport.kafka_names import advice_for, in_our_names
from semel.sdk.transport.security import (
    OPEN,
    Security,
    is_security_name,
    security_of_query,
    taken_from,
)

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
    """Decorate a constructor, so that it takes Kafka's names of its options, and refuses what it does not know."""
    parameters = inspect.signature(function).parameters
    known = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name != "self"
    ]
    names, places = frozenset(known), list(parameters)

    positional = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if places[0] == "self" and len(args) > 1:
            _check_places(type(args[0]).__name__, known, args[1:], kwargs, positional - 1)
        if names.issuperset(kwargs):
            return function(*args, **kwargs)
        owner = type(args[0]).__name__ if function.__name__ == "__init__" else f"{function.__name__}()"
        by_place = dict(zip(places, args, strict=False))
        options = in_our_names(owner, known, kwargs, by_place)
        if "bootstrap" in names and any(map(is_security_name, options)):
            where = parse_bootstrap(by_place.get("bootstrap", options.get("bootstrap")), is_all=False)
            secured = Bootstrap(where.addresses, taken_from(owner, options, where.security))
            if "bootstrap" in by_place:
                place = places.index("bootstrap")
                return cast(Callable[..., R], checked)(*args[:place], secured, *args[place + 1 :], **options)
            options["bootstrap"] = secured
        for name in options:
            if name not in known:
                elsewhere = getattr(args[0] if args else None, "_options_elsewhere", {})
                advice = elsewhere.get(name) or advice_for(name, known) or nearest(name, known)
                raise UsageError(f"{owner} has no option {name!r}; {advice}")
        return cast(Callable[..., R], function)(*args, **options)

    checked.takes_kafka_names = True  # type: ignore[attr-defined]
    return checked


def _check_places(
    client: str, known: Sequence[str], given: tuple[object, ...], by_name: Mapping[str, Any], most: int
) -> None:
    """Refuse what other clients take by place: topics, or all settings in one mapping."""
    first = given[0]
    if isinstance(first, Mapping):
        raise UsageError(f"{client} takes settings as options, under the same names: {client}(**settings)")
    is_topic = isinstance(first, str) and bool(first) and ":" not in first
    if is_topic and "topics" in known and "topics" not in by_name and "pattern" not in by_name:
        topics = [text for text in given if isinstance(text, str)] if len(given) > most else [first]
        raise UsageError(
            f"the first argument of {client} is the address of a node, HOST:PORT, not {first!r}; give topics by name: "
            f"{client}(bootstrap, ..., topics={topics!r})"
        )
    if len(given) > most:
        raise UsageError(
            f"{client} takes {' and '.join(known[:most])} by place and everything else by name: "
            f"{client}({', '.join(known[:most])}, {known[most]}=...)"
        )


def misnamed(function: Callable[..., Any], args: Sequence[object], given: Mapping[str, Any]) -> UsageError | None:
    """Return what to raise for a call with arguments that a method does not have; None where it has them all."""
    if hasattr(function, "takes_kafka_names"):
        return None  # it has looked at them itself
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    known = [one.name for one in parameters if one.name != "self"]
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return None
    name = f"{type(args[0]).__name__}.{function.__name__}" if args else function.__name__
    in_seconds = f"{unknown.removesuffix('_ms')}_s"
    if not known:
        advice = "it takes none"
    elif unknown.endswith("_ms") and in_seconds in known:
        value = given[unknown]
        seconds = f"{value / 1000:g}" if isinstance(value, (int, float)) else "..."
        advice = f"what a call waits for is in seconds: {in_seconds}={seconds}"
    else:
        advice = nearest(unknown, known)
    return UsageError(f"{name}() has no argument {unknown!r}; {advice}")


DEFAULT_BOOTSTRAP: Final = "localhost:9094"
BOOTSTRAP_VARIABLE: Final = "SEMEL_BOOTSTRAP"
"""The environment variable that says where the cluster is, where a program does not."""


def option_names(kind: type) -> list[str]:
    """Return the names of the options that a class takes."""
    parameters = inspect.signature(kind).parameters.values()
    return [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the advice for an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name.replace(".", "_"), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(known)}"


def check_int(name: str, value: object, minimum: int, maximum: int = INT32_MAX) -> int:
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
    """Return `value` if it is one of `choices`. Raises `UsageError` with the nearest one and all others."""
    if not isinstance(value, str) or value not in choices:
        close = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
        advice = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"option {name} can't be {value!r}; {advice}use one of: {', '.join(choices)}")
    return value


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Where a cluster is, and how it is reached. `str` gives a text that means the same.

    A password in it is part of that text: it is for programs, and not to be shown.

    addresses: of nodes, each "host:port"
    security:  how clients encrypt, and as which user they connect
    """

    addresses: tuple[str, ...]
    security: Security = OPEN

    def __str__(self) -> str:
        scheme = self.security.scheme
        return ",".join(scheme + address for address in self.addresses) + self.security.query()


def parse_bootstrap(bootstrap: object, *, is_all: bool = True) -> Bootstrap:
    """Return where a cluster is by text with commas or a sequence of text. Raises `UsageError`.

    Each address is HOST:PORT. With `tls://` before all of them clients encrypt; with `tls+sasl://` (or `sasl://`, which
    does not encrypt) they connect as a user. The files for it follow the last one:
    `tls+sasl://HOST:PORT?ssl.ca.location=FILE&sasl.username=NAME&sasl.password.location=FILE`.
    None: what the environment variable SEMEL_BOOTSTRAP gives, else localhost:9094.

    is_all: whether nothing else says as which user

    >>> parse_bootstrap("localhost:9094, [::1]:9094").addresses
    ('localhost:9094', '[::1]:9094')
    >>> parse_bootstrap("tls://log1:9094?ssl.ca.location=ca.pem").security.tls
    Tls(ca_location='ca.pem', certificate_location='', key_location='')
    """
    if isinstance(bootstrap, Bootstrap):
        return bootstrap
    where = "bootstrap"
    if bootstrap is None:
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
        where = f"the environment variable {BOOTSTRAP_VARIABLE}, since no bootstrap is given:"
    if isinstance(bootstrap, str) and bootstrap.startswith(SCHEME):
        return Bootstrap((bootstrap,))  # also one with a comma: it is a path
    if not isinstance(bootstrap, str):
        shown = f" {bootstrap!r}" if isinstance(bootstrap, (int, float)) else ""  # others may have a password in them
        if not isinstance(bootstrap, Sequence) or not all(isinstance(part, str) for part in bootstrap):
            raise UsageError(f'bootstrap must be text such as "localhost:9094", not {type(bootstrap).__name__}{shown}')
        if len(bootstrap) == 1 and bootstrap[0].strip().startswith(SCHEME):
            return Bootstrap((bootstrap[0].strip(),))
        if "" in map(str.strip, bootstrap):
            raise _no_address(where, "")
        bootstrap = ",".join(bootstrap)
    text, mark, query = bootstrap.partition("?")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise _empty(where)
    schemes = {scheme_of(part): part for part in parts}
    if len(schemes) > 1:
        one, other = list(schemes.values())[:2]
        raise UsageError(f"{where} has {one} and {other}: write the same scheme before all of them, or none")
    (scheme,) = schemes
    if not scheme and "://" in parts[0]:
        raise _no_address(where, parts[0])
    if mark and not scheme:
        raise UsageError(
            f"{where}: options after the address are for {', '.join(SCHEMES)}, and {parts[0]} has none of these"
        )
    if any(f",{each}" in query.replace(" ", "") for each in SCHEMES):  # another address; a value may be a URL
        raise UsageError(f"{where}: options stand once, after the last address: {TLS_PREFIX}HOST:PORT,...?NAME=VALUE")
    parts = [without_scheme(part) for part in parts]
    security = security_of_query(where, scheme, query.strip(), is_all=is_all)
    for part in parts:
        found = _ADDRESS.match(part)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise _no_address(where, part)
    if security.login is not None:
        for part in parts:
            security.login.check_may_be_sent(part, encrypted=security.tls is not None)
    return Bootstrap(tuple(parts), security)


def _empty(where: str) -> UsageError:
    return UsageError(f'{where} is empty; give the address of a node, such as "localhost:9094"')


def _no_address(where: str, part: str) -> UsageError:
    shown = hidden_password(part)
    if "@" in part:  # a name and a password before the host, as in other URLs
        shown = f"...@{part.rpartition('@')[2]}"
    if "://" in part and "sasl" in part.lower().partition("://")[0]:
        return UsageError(f"{where} address {shown!r}: write one of {', '.join(SCHEMES)} before HOST:PORT")
    if part.lower().startswith(("ssl://", "tls://", "https://", "grpcs://")):
        return UsageError(f"{where} address {shown!r}: write {TLS_PREFIX}HOST:PORT for a node that encrypts")
    return UsageError(
        f"{where} address {shown!r} is not HOST:PORT; give the address of a node, its gRPC port or its Kafka "
        'port, such as "localhost:9094"'
    )


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What every client has. Times in milliseconds.

    addresses:                of nodes, each "host:port"
    security:                 how connections are encrypted, and as which user they are made
    api_timeout_ms:           how long one call of the API may take, retries included
    request_timeout_ms:       how long one attempt at one node may take
    connect_timeout_ms:       how long to try where no node has ever answered; None: as long as the call may take
    retry_backoff_ms:         the first pause before a retry; doubles up to retry_backoff_max_ms, with jitter
    metadata_max_age_ms:      when what is known about topics and nodes is asked for again
    connection_in_flight_max: how many requests may wait for their answer on one data connection
    """

    addresses: tuple[str, ...]
    client_id: str = "semel"
    security: Security = OPEN
    api_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int | None = None
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    connection_in_flight_max: int = 64

    @property
    def bootstrap(self) -> Bootstrap:
        """What another client is made with, for the same cluster."""
        return Bootstrap(self.addresses, self.security)

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)

    @classmethod
    def checked(cls, bootstrap: object, **options: Any) -> ClientOptions:
        """Return the options, each checked. Raises `UsageError`."""
        for name, value in options.items():
            if name == "client_id":
                check_text(name, value)
            elif name != "connect_timeout_ms" or value is not None:
                check_int(name, value, 1)
        where = parse_bootstrap(bootstrap)
        return cls(where.addresses, security=where.security, **options)
