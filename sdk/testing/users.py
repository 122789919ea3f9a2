"""Users with passwords, of a broker or a cluster for tests, and how they connect."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from semel.broker.config.listeners import PROTOCOLS
from semel.broker.users.user_file import write_user
from semel.protocol.errors import UsageError
from semel.protocol.schemes import TLS_SASL_PREFIX, scheme_for, scheme_of, speaks_tls, without_scheme
from semel.protocol.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, check_user_name, make_verifiers

MECHANISMS: Final = "sasl.enabled.mechanisms"
_LOCATION: Final = "sasl.users.location"


class BrokerUsers:
    """Names and passwords. They are in a file while there is a broker, which is gone with it."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """passwords: by name; empty where nobody is asked. Raises `UsageError`."""
        if not isinstance(passwords, Mapping):
            raise UsageError('users are names with passwords: users={"alice": "a password"}')
        for name, password in passwords.items():
            if not isinstance(name, str) or not isinstance(password, str) or not password:
                raise UsageError(f"the password of the user {name!r} has to be text that is not empty")
            check_user_name(name)
        self._passwords = dict(passwords)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def prepare(self, values: dict[str, object]) -> None:
        """Let the listeners in a node's settings ask for passwords. Raises `UsageError`."""
        if not self._passwords:
            return
        if values.get(_LOCATION):
            raise UsageError(f"{_LOCATION} is a file with users: give that, or users, not both")
        values.setdefault(MECHANISMS, (*SCRAM_MECHANISMS, "PLAIN"))
        for protocol in PROTOCOLS:
            if values.get(f"{protocol}.listeners"):
                raise UsageError(
                    f"users are for a broker with one listener of each protocol: leave {protocol}.listeners out, or "
                    f"users, and set {_LOCATION} and the listeners yourself"
                )
            listen = f"{protocol}.listen"
            address = values.get(listen)
            if isinstance(address, str):
                values[listen] = scheme_for(tls=speaks_tls(address), sasl=True) + without_scheme(address)

    def write(self) -> dict[str, object]:
        """Write the file, and return the settings that name it."""
        if not self._passwords:
            return {}
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="semel-test-users-")
        path = str(Path(self._folder.name) / "users")
        for name, password in self._passwords.items():
            # As few iterations as are taken: each start of a test would wait for more.
            write_user(path, name, make_verifiers(password, SCRAM_MECHANISMS, ITERATIONS_MIN))
        return {_LOCATION: path}

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def bootstrap_of(self, user: str, bootstrap: str, mechanisms: object) -> str:
        """Return addresses for Semel's clients with a user's name and password. Raises `UsageError`.

        bootstrap:  the addresses, with their scheme
        mechanisms: the value of sasl.enabled.mechanisms
        """
        options = {"sasl.username": user, "sasl.password": self._password(user)}
        if _first(mechanisms) != SCRAM_MECHANISMS[0]:  # which is what clients use that are not told
            options["sasl.mechanism"] = _first(mechanisms)
        return f"{bootstrap}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())

    def kafka_config_of(self, user: str, bootstrap: str, mechanisms: object) -> dict[str, str]:
        """Return the settings for Kafka's clients, by librdkafka's names. Takes and raises as `bootstrap_of`."""
        password = self._password(user)
        return {
            "bootstrap.servers": hosts_of(bootstrap),
            "security.protocol": "SASL_SSL" if scheme_of(bootstrap) == TLS_SASL_PREFIX else "SASL_PLAINTEXT",
            "sasl.mechanism": _first(mechanisms),
            "sasl.username": user,
            "sasl.password": password,
        }

    def _password(self, user: str) -> str:
        if user not in self._passwords:
            there = ", ".join(self._passwords) or "none"
            raise UsageError(
                f'there is no user {user!r}; there are: {there}. Name them: users={{"alice": "a password"}}'
            )
        return self._passwords[user]


def hosts_of(bootstrap: str) -> str:
    """Return addresses without their schemes, as Kafka's clients take them.

    >>> hosts_of("sasl://127.0.0.1:9092,sasl://127.0.0.1:9093")
    '127.0.0.1:9092,127.0.0.1:9093'
    """
    return ",".join(map(without_scheme, bootstrap.split(",")))


def _first(mechanisms: object) -> str:
    taken = mechanisms.split(",") if isinstance(mechanisms, str) else mechanisms
    assert isinstance(taken, list | tuple), "the configuration has checked it"
    return str(taken[0]).strip()
