"""The listeners for clients: one of each protocol without a name, or several with names and addresses of their own.

An item of `kafka.listeners` and `grpc.listeners` is `NAME=ADDRESS`, or `NAME=ADDRESS?advertised=HOST:PORT`. Behind the
question mark may also stand, with & between them, the settings of TLS that are other ones for this listener. Names are
the same in upper and lower case, as in Kafka. A listener's name is what an answer goes by: it tells a client the
addresses of the listeners that have the name of his own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote, unquote

from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.protocol.schemes import with_scheme_of
from semel.runtime.setting import ConfigError

LISTENERS_MAX: Final = 16
"""The most listeners of one protocol: each costs sockets, and its addresses are in every registration."""
KAFKA: Final = "kafka"
GRPC: Final = "grpc"
PROTOCOLS: Final = (KAFKA, GRPC)

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_NAME_RULE: Final = "letters, digits, and . _ - between them, 64 at most"
TLS_OPTIONS: Final = ("ssl.certificate.location", "ssl.key.location", "ssl.ca.location", "ssl.client.auth")
"""What a listener may have of its own."""
_ADVERTISED: Final = "?advertised="
_ADVERTISED_SPELLINGS: Final = frozenset(
    {
        "advertise",
        "advertised",
        "advertised.address",
        "advertised_address",
        "advertised.listener",
        "advertised.listeners",
    }
)
_KAFKAS_NAME: Final = re.compile(
    r"(?P<name>(?!(?:tls|sasl|tls\+sasl|https?|tcp|ssl|plaintext|sasl_ssl|sasl_plaintext)[:=])[A-Za-z0-9._-]+)"
    r"(?::(?=[a-z+]+://)|://)(?P<listen>[^=]+)",
    re.IGNORECASE,
)
"""A name as Kafka writes it, `EXTERNAL://0.0.0.0:9093`, or with a colon, `external:tls://0.0.0.0:9093`."""
_SHOWN: Final = 200
_DEFAULT_LISTEN: Final = {KAFKA: "127.0.0.1:9092", GRPC: "127.0.0.1:9094"}


class ListenerSettings(Protocol):
    """The settings that say which listeners there are."""

    @property
    def kafka_listen(self) -> str: ...
    @property
    def kafka_advertised(self) -> str: ...
    @property
    def kafka_listeners(self) -> tuple[str, ...]: ...
    @property
    def grpc_listen(self) -> str: ...
    @property
    def grpc_advertised(self) -> str: ...
    @property
    def grpc_listeners(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class ClientListener:
    """A listener for clients, as it was set.

    protocol:   KAFKA or GRPC
    name:       in lower case
    listen:     HOST:PORT, with its scheme
    advertised: HOST:PORT that clients are told; empty for the address that is listened on
    is_named:   whether it is one of several, of `kafka.listeners` or `grpc.listeners`
    tls:        what it has in place of the general settings with these names (`TLS_OPTIONS`), sorted
    """

    protocol: str
    name: str
    listen: str
    advertised: str
    is_named: bool
    tls: tuple[tuple[str, str], ...] = ()

    @property
    def setting(self) -> str:
        """What messages call it: a setting, or an item of one. `= ADDRESS` may follow."""
        return f"{self.protocol}.listeners: {self.name}" if self.is_named else f"{self.protocol}.listen"

    @property
    def advertised_setting(self) -> str:
        """The same of its advertised address."""
        if self.is_named:
            return f"{self.protocol}.listeners: {self.name}={self.listen}{_ADVERTISED}"
        return f"{self.protocol}.advertised"

    def item(self, listen: object = None, advertised: object = None) -> str:
        """Return it as an item of `kafka.listeners`, with other addresses (without a scheme) where they are given."""
        told = self.advertised if advertised is None else str(advertised)
        where = self.listen if listen is None else with_scheme_of(self.listen, listen)
        given = [("advertised", told), *((name, quote(value, safe="/:")) for name, value in self.tls)]
        options = "&".join(f"{name}={value}" for name, value in given if value)
        return f"{self.name}={where}{'?' + options if options else ''}"


def is_item(text: str) -> bool:
    """Return whether a listener has a name.

    >>> is_item("external=tls://0.0.0.0:9093"), is_item("127.0.0.1:9092")
    (True, False)
    """
    return "=" in text.partition("?")[0]


def parse_items(setting: str, items: Iterable[str]) -> tuple[ClientListener, ...]:
    """Return the listeners of `kafka.listeners` or `grpc.listeners`, in order. Their addresses are not looked at.

    Raises `ConfigError` that names the item.
    """
    protocol = setting.partition(".")[0]
    found: dict[str, ClientListener] = {}
    for text in items:
        listener = _parse_item(setting, protocol, text)
        if listener.name in found:
            raise ConfigError(
                f"{setting} has two listeners with the name {listener.name}: give each a name of its own (upper and "
                "lower case are the same)"
            )
        if len(found) == LISTENERS_MAX:
            raise ConfigError(f"{setting} has more than {LISTENERS_MAX} listeners: leave out {text[:_SHOWN]!r} and on")
        found[listener.name] = listener
    return tuple(found.values())


def _parse_item(setting: str, protocol: str, text: str) -> ClientListener:
    address, _, query = text.partition("?")
    name, equals, listen = address.partition("=")
    name, listen = name.strip(), listen.strip()
    shown, example = f"{setting} has the item {text[:_SHOWN]!r}", _DEFAULT_LISTEN[protocol]
    foreign = _KAFKAS_NAME.fullmatch(address.strip())
    if foreign is not None:
        raise ConfigError(
            f"{shown}: a listener's name ends with =, write {foreign['name'].lower()}={foreign['listen']}"
        )
    if not equals or not listen:
        raise ConfigError(f"{shown}, which is not NAME=HOST:PORT, for example internal={example}")
    if name.lower() in _ADVERTISED_SPELLINGS:
        raise ConfigError(
            f"{shown}, which looks like an option: what clients are told stands behind the address of its listener, "
            f"external={example}{_ADVERTISED}{listen}"
        )
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{shown}, whose name is not {_NAME_RULE}: choose another name, for example internal={listen}"
        )
    advertised, tls = _options(shown, f"{name}={listen}", query) if "?" in text else ("", ())
    return ClientListener(protocol, name.lower(), listen, advertised, is_named=True, tls=tls)


def _options(shown: str, address: str, query: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return what stands behind the address of an item: the address to advertise, and settings of TLS."""
    given: dict[str, str] = {}
    for part in query.split("&"):
        option, _, value = (each.strip() for each in part.partition("="))
        if option in given:
            raise ConfigError(f"{shown}: {option} stands behind the address twice")
        if (option != "advertised" and option not in TLS_OPTIONS) or not value:
            wanted = value if option in _ADVERTISED_SPELLINGS and value else "log1.example.com:9092"
            raise ConfigError(
                f"{shown}: behind the address there may be {_ADVERTISED}HOST:PORT, and {', '.join(TLS_OPTIONS)} with & "
                f"between them, and nothing else. Write {address}{_ADVERTISED}{wanted}"
            )
        given[option] = unquote(value) if option in TLS_OPTIONS else value
        if not given[option].isprintable():
            raise ConfigError(f"{shown}: {option} has a character that no path or address has")
    advertised = given.pop("advertised", "")
    return advertised, tuple(sorted(given.items()))


def listeners_of(config: ListenerSettings, protocol: str) -> tuple[ClientListener, ...]:
    """Return the listeners of one protocol, at least one: the first is the node's main one. Raises `ConfigError`."""
    items: tuple[str, ...] = getattr(config, f"{protocol}_listeners")
    if items:
        return parse_items(f"{protocol}.listeners", items)
    listen: str = getattr(config, f"{protocol}_listen")
    advertised: str = getattr(config, f"{protocol}_advertised")
    return (ClientListener(protocol, DEFAULT_LISTENER, listen, advertised, is_named=False),)


def kafka_listeners(config: ListenerSettings) -> tuple[ClientListener, ...]:
    """Return the listeners that speak Kafka's protocol, the main one first."""
    return listeners_of(config, KAFKA)


def grpc_listeners(config: ListenerSettings) -> tuple[ClientListener, ...]:
    """Return the listeners that speak gRPC, the main one first."""
    return listeners_of(config, GRPC)


def client_listeners(config: ListenerSettings) -> tuple[ClientListener, ...]:
    """Return all listeners for clients, of both protocols."""
    return (*kafka_listeners(config), *grpc_listeners(config))


def check_listeners(
    config: ListenerSettings,
    check_listen: Callable[[ClientListener], object],
    check_advertised: Callable[[ClientListener], object],
) -> None:
    """Raise `ConfigError` where listeners contradict each other, or one of their addresses is wrong."""
    for protocol in PROTOCOLS:
        items: tuple[str, ...] = getattr(config, f"{protocol}_listeners")
        if not items:
            continue
        for listener in parse_items(f"{protocol}.listeners", items):
            check_listen(listener)
            check_advertised(listener)
        listen, advertised = getattr(config, f"{protocol}_listen"), getattr(config, f"{protocol}_advertised")
        if listen != _DEFAULT_LISTEN[protocol]:
            raise ConfigError(
                f"{protocol}.listen = {listen} and {protocol}.listeners are both set, and each says where to listen: "
                f"give it a name among {protocol}.listeners ({DEFAULT_LISTENER}={listen}), or leave it out"
            )
        if advertised:
            raise ConfigError(
                f"{protocol}.advertised = {advertised} is for {protocol}.listen alone: write "
                f"{_ADVERTISED}{advertised} behind the address of a listener of {protocol}.listeners"
            )
