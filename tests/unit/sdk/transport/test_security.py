"""How clients are told to encrypt: in the bootstrap, or by the options of Kafka's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.protocol.errors import UsageError
from semel.sdk.sql.outbox import Outbox
from semel.sdk.transport.options import Bootstrap, ClientOptions, parse_bootstrap
from semel.sdk.transport.security import Encryption, Security, Tls

NODE = "log1.example.com:9094"
ALL = Tls("ca.pem", "me.pem", "me.key")


@pytest.fixture(autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the paths here lead to: a client looks at its files as it is made."""
    folder = tmp_path_factory.mktemp("files")
    authority = Authority(folder)
    authority.client("me")
    (folder / "other.pem").write_bytes(authority.ca.read_bytes())
    monkeypatch.chdir(folder)


paths = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=20)


@given(
    st.builds(Tls, paths | st.just(""), paths, paths), st.lists(st.sampled_from(("a:1", "[::1]:2", "b:3")), min_size=1)
)
def test_a_bootstrap_with_any_paths_passes_through_text(tls: Tls, addresses: list[str]) -> None:
    bootstrap = Bootstrap(tuple(addresses), Security(tls))
    assert parse_bootstrap(str(bootstrap)) == bootstrap
    assert parse_bootstrap([str(bootstrap)]) == bootstrap
    assert parse_bootstrap(bootstrap) is bootstrap


def test_a_bootstrap_says_how_its_nodes_are_reached() -> None:
    assert parse_bootstrap("a:1,b:2") == Bootstrap(("a:1", "b:2"))
    assert parse_bootstrap("tls://a:1, tls://b:2") == Bootstrap(("a:1", "b:2"), Security(Tls()))
    assert parse_bootstrap(["tls://a:1", "tls://b:2?ssl.ca.location=ca.pem"]) == Bootstrap(
        ("a:1", "b:2"), Security(Tls("ca.pem"))
    )
    text = "tls://a:1?ssl.ca.location=ca.pem&ssl.certificate.location=me.pem&ssl.key.location=me.key"
    assert parse_bootstrap(text) == Bootstrap(("a:1",), Security(ALL))
    assert ClientOptions.checked(text).bootstrap == Bootstrap(("a:1",), Security(ALL))


@pytest.mark.parametrize(
    ("bootstrap", "told"),
    [
        ("tls://a:1,b:2", "has tls://a:1 and b:2: write the same scheme before all of them, or none"),
        (
            "a:1?ssl.ca.location=ca.pem",
            "options after the address are for tls://, sasl://, tls+sasl://, and a:1 has none",
        ),
        ("tls://a:1?ssl.ca.location=x,tls://b:2", "options stand once, after the last address"),
        ("tls://a:1?ssl.ca=x", "has no option 'ssl.ca'; it can have: ssl.ca.location"),
        ("tls://a:1?ca.pem", "'ca.pem' is not NAME=VALUE"),
        ("tls://a:1?ssl.key.location=me.key", "ssl.key.location needs ssl.certificate.location, too"),
        ("tls://a:1?ssl.certificate.location=me.pem", "ssl.certificate.location needs ssl.key.location, too"),
        ("tls://", "'' is not HOST:PORT"),
        ("tls://a", "'a' is not HOST:PORT"),
        ("tls://tls://a:1", "write tls://HOST:PORT for a node that encrypts"),
        ("ssl://a:1", "write tls://HOST:PORT for a node that encrypts"),
        ("TLS://a:1", "write tls://HOST:PORT for a node that encrypts"),
        ("tls://a:1?ssl.ca.location=x&ssl.ca.location=y", "has ssl.ca.location twice"),
    ],
)
def test_a_bootstrap_that_can_t_be_meant_is_refused(bootstrap: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_bootstrap(bootstrap)
    assert told in raised.value.message


@pytest.mark.parametrize(
    ("options", "tls"),
    [
        ({"security_protocol": "SSL"}, Tls()),
        ({"security.protocol": "ssl", "ssl.ca.location": "ca.pem"}, Tls("ca.pem")),
        ({"ssl_cafile": "ca.pem"}, Tls("ca.pem")),
        ({"ssl_cafile": "ca.pem", "ssl_certfile": "me.pem", "ssl_keyfile": "me.key"}, ALL),
        ({"security_protocol": "PLAINTEXT"}, None),
        ({"security_protocol": "PLAINTEXT", "ssl_cafile": None}, None),
    ],
)
@pytest.mark.parametrize("kind", [semel.Admin, semel.Producer, semel.Consumer, semel.aio.Admin, semel.aio.Producer])
def test_clients_take_the_options_of_kafkas_clients(kind: Any, options: dict[str, Any], tls: Tls | None) -> None:
    for client in (kind(NODE, **options), kind(bootstrap_servers=NODE, **options)):
        core = client._core
        made = core.client.options if hasattr(core, "client") else core.options.client
        assert made.bootstrap == Bootstrap((NODE,), Security(tls))


def test_whatever_takes_a_bootstrap_takes_them() -> None:
    outbox = Outbox(NODE, "sqlite:///x.db", name="x", ssl_cafile="ca.pem")  # type: ignore[call-arg]
    assert parse_bootstrap(outbox._bootstrap) == Bootstrap((NODE,), Security(Tls("ca.pem")))
    shared = semel.SharedTransaction(NODE, "key", token="t", security_protocol="SSL")  # type: ignore[call-arg]
    assert parse_bootstrap(shared._bootstrap) == Bootstrap((NODE,), Security(Tls()))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"security_protocol": "TLS"}, "can't be 'TLS'; use one of: PLAINTEXT, SSL, SASL_SSL, SASL_PLAINTEXT"),
        ({"security_protocol": "PLAINTEXT", "ssl_cafile": "x"}, "with security.protocol=PLAINTEXT: nothing would be"),
        ({"ssl_cafile": "x", "ssl.ca.location": "y"}, "is given under two names, with different values"),
        ({"ssl_cafile": 7}, "option ssl_cafile must be text"),
        ({"ssl_certfile": "x"}, "ssl.certificate.location needs ssl.key.location, too"),
        ({"ssl_check_hostname": False}, "a node's certificate is always checked against the host"),
        ({"ssl_password": "hunter2"}, "is a key that is not encrypted"),
        ({"ssl_truststore_location": "x.jks"}, "use ssl.ca.location, a PEM file"),
        ({"sasl_kerberos_service_name": "x"}, "clients take sasl_mechanism, sasl_username and sasl_password"),
        ({"ssl_keystore_key": "hunter2"}, "use ssl.key.location, a PEM file"),
        ({"ssl_ciphers": "x"}, "clients take ssl_ca_location, ssl_certificate_location and ssl_key_location"),
    ],
)
def test_S5_options_that_can_t_be_meant_are_refused_without_their_secrets(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        semel.Admin(NODE, **options)
    assert told in raised.value.message
    assert "hunter2" not in raised.value.message


def test_options_and_a_bootstrap_that_name_different_files_are_refused() -> None:
    with pytest.raises(UsageError, match="name different files for TLS"):
        semel.Admin(f"tls://{NODE}?ssl.ca.location=one.pem", ssl_cafile="other.pem")
    with semel.Admin(f"tls://{NODE}", ssl_cafile="other.pem") as admin:
        assert admin._core.client.options.security.tls == Tls("other.pem")
    with semel.Admin(f"tls://{NODE}?ssl.ca.location=other.pem", security_protocol="SSL") as admin:
        assert admin._core.client.options.security.tls == Tls("other.pem")
    with semel.Admin(NODE, ssl_cafile=Path("other.pem")) as admin:  # type: ignore[arg-type]
        assert admin._core.client.options.security.tls == Tls("other.pem")
    with pytest.raises(UsageError, match=r"security\.protocol=PLAINTEXT, and its bootstrap has tls://"):
        semel.Admin(f"tls://{NODE}", security_protocol="PLAINTEXT")


def test_a_plus_in_a_path_is_a_plus() -> None:
    assert parse_bootstrap("tls://a:1?ssl.ca.location=c++/ca%20b.pem").security.tls == Tls("c++/ca b.pem")


def test_files_that_can_t_be_used_any_more_leave_what_they_held(authority_of_me: Tls) -> None:
    encryption = Encryption(authority_of_me)
    context = encryption.context()
    credentials = encryption.credentials()
    Path(authority_of_me.key_location).unlink()
    assert encryption.context() is not None
    assert encryption.credentials() is credentials
    assert context is not None
    with pytest.raises(UsageError, match=r"ssl\.key\.location = me\.key can't be read"):
        Encryption(authority_of_me)


@pytest.fixture
def authority_of_me() -> Tls:
    return ALL


def test_S5_a_wrong_value_is_not_shown() -> None:
    with pytest.raises(UsageError) as raised:
        semel.Admin(NODE, ssl_keyfile=b"hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in raised.value.message
