"""As which user clients connect: in the bootstrap, or by the options of Kafka's clients; and what is not shown (S5)."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.protocol.errors import FatalError, UsageError
from semel.sdk.transport.login import Credentials, Login
from semel.sdk.transport.options import Bootstrap, ClientOptions, parse_bootstrap
from semel.sdk.transport.security import Security, Tls, security_of_query, taken_from

HERE = "127.0.0.1:9094"
FAR = "log1.example.com:9094"
ME = Login("me", "hunter2")


@pytest.mark.parametrize(
    "login",
    [
        ME,
        Login("me", password_location="a b/pässword&=?"),
        Login("mé", "p&=?#:/%+ ,", mechanism="SCRAM-SHA-512"),
        Login("me", "hunter2", mechanism="PLAIN", plain_without_tls=True),
        Login("", mechanism="OAUTHBEARER", token_url="file:///a%20b/t&"),
    ],
)
@pytest.mark.parametrize("tls", [None, Tls(), Tls("ca.pem")])
def test_a_user_passes_through_text(login: Login, tls: Tls | None) -> None:
    bootstrap = Bootstrap((HERE, "[::1]:2"), Security(tls, login))
    assert parse_bootstrap(str(bootstrap)) == bootstrap


def test_a_bootstrap_says_where_the_token_is() -> None:
    """As docs/security.md writes it."""
    text = f"tls+sasl://{FAR}?sasl.mechanism=OAUTHBEARER&sasl.oauthbearer.token.endpoint.url=file:///run/token"
    assert parse_bootstrap(text) == Bootstrap((FAR,), Security(Tls(), MINE))


def test_a_bootstrap_says_as_which_user() -> None:
    text = f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2"
    assert parse_bootstrap(text) == Bootstrap((HERE,), Security(None, ME))
    assert parse_bootstrap(f"tls+{text}") == Bootstrap((HERE,), Security(Tls(), ME))
    assert parse_bootstrap(text.replace("sasl://", "tls://")) == Bootstrap((HERE,), Security(Tls(), ME))
    assert ClientOptions.checked(text).bootstrap == Bootstrap((HERE,), Security(None, ME))


@pytest.mark.parametrize(
    ("bootstrap", "told"),
    [
        (f"sasl://{HERE}", "nodes with sasl:// serve users alone: give sasl.username and sasl.password.location"),
        (f"sasl://{HERE}?sasl.password=hunter2", "sasl.password without sasl.username"),
        (f"sasl://{HERE}?sasl.username=me", "sasl.username needs sasl.password.location, a file"),
        (f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2&sasl.password.location=x", "has both"),
        (f"sasl://{HERE}?sasl.username=a%3Ab&sasl.password=hunter2", "a user's name has no colon"),
        (f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2&sasl.mechanism=GSSAPI", "can't be 'GSSAPI'; use one"),
        (f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2&ssl.ca.location=x", "nothing is encrypted"),
        (f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2&sasl.plain.without.tls=1", "true or false, not '1'"),
        (f"{HERE}?sasl.username=me&sasl.password=hunter2", "has none of these"),
        (f"sasl://{HERE},tls+sasl://{FAR}?sasl.username=me&sasl.password=hunter2", "the same scheme before all"),
        (f"sasl://{FAR}?sasl.username=me&sasl.password=hunter2", "would be readable for everybody in the network"),
        ("sasl://a?sasl.username=me&sasl.password=hunter2", "'a' is not HOST:PORT"),
        ("a:1&sasl.password=hunter2", "is not HOST:PORT"),
        (f"sasl://me:hunter2@{HERE}?sasl.username=me&sasl.password.location=x", f"'...@{HERE}' is not HOST:PORT"),
        (f"sasl://{HERE}?sasl.username=me&sasl.password=x&hunter2", "a part behind a password's & is not NAME=VALUE"),
        (f"sasl://{HERE}?sasl.username=me&sasl.password=x&hunter2=1", "in a value, & is %26"),
        (f"sasl+tls://{HERE}?sasl.username=me&sasl.password=x", "write one of tls://, sasl://, tls+sasl:// before"),
    ],
)
def test_S5_a_bootstrap_that_can_t_be_meant_is_refused_without_its_password(bootstrap: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_bootstrap(bootstrap)
    assert told in raised.value.message
    assert "hunter2" not in "".join(traceback.format_exception(raised.value, limit=0))


@pytest.mark.parametrize(
    ("options", "security"),
    [
        ({"sasl_username": "me", "sasl_password": "hunter2"}, Security(None, ME)),
        ({"sasl_plain_username": "me", "sasl_plain_password": "hunter2"}, Security(None, ME)),
        (
            {"sasl.username": "me", "sasl.password": "hunter2", "security.protocol": "sasl_plaintext"},
            Security(None, ME),
        ),
        ({"sasl_username": "me", "sasl_password": "hunter2", "security_protocol": "SASL_SSL"}, Security(Tls(), ME)),
        (
            {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": "hunter2"},
            Security(None, Login("me", "hunter2", mechanism="SCRAM-SHA-512")),
        ),
        (
            {
                "sasl_jaas_config": "org.apache.kafka.common.security.scram.ScramLoginModule required\n"
                ' username="me" password="hunter2";'
            },
            Security(None, ME),
        ),
        (
            {
                "sasl.jaas.config": "x.PlainLoginModule required username=me password=hunter2;",
                "sasl_mechanism": "plain",
            },
            Security(None, Login("me", "hunter2", mechanism="PLAIN")),
        ),
    ],
)
@pytest.mark.parametrize("kind", [semel.Admin, semel.Producer, semel.Consumer, semel.aio.Admin])
def test_clients_take_the_options_of_kafkas_clients(kind: Any, options: dict[str, Any], security: Security) -> None:
    client = kind(HERE, **options)
    core = client._core
    made = core.client.options if hasattr(core, "client") else core.options.client
    assert made.bootstrap == Bootstrap((HERE,), security)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sasl_username": "me"}, "sasl.username needs sasl.password.location"),
        ({"sasl_username": "me", "sasl_password": "hunter2", "security_protocol": "SSL"}, "that is SASL_SSL"),
        ({"sasl_username": "me", "sasl_password": b"hunter2"}, "must be text"),
        ({"sasl_username": "me", "sasl_password": "hunter2", "sasl_plain_password": "hunter22"}, "different values"),
        ({"security_protocol": "SASL_SSL"}, "serve users alone: give sasl.username"),
        ({"sasl_jaas_config": "x.Krb5LoginModule required useKeyTab=true password=hunter2;"}, "has to be of the form"),
        (
            {"sasl_jaas_config": "x.ScramLoginModule required username=me password=hunter2;", "sasl_username": "you"},
            "sasl.username and sasl.jaas.config have different values",
        ),
    ],
)
def test_S5_options_that_can_t_be_meant_are_refused_without_their_password(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        semel.Admin(HERE, **options)
    assert told in raised.value.message
    assert "hunter2" not in raised.value.message


def test_a_bootstrap_and_options_that_name_different_users_are_refused() -> None:
    bootstrap = f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2"
    with pytest.raises(UsageError, match="name different users"):
        semel.Admin(bootstrap, sasl_username="you", sasl_password="x")
    with semel.Admin(bootstrap, sasl_username="me", sasl_password="hunter2") as admin:
        assert admin._core.client.options.security == Security(None, ME)


def test_S5_a_password_is_in_no_repr() -> None:
    options = ClientOptions.checked(f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2")
    for shown in (options, options.bootstrap, options.security, ME, Credentials(ME)):
        assert "hunter2" not in repr(shown)


@pytest.mark.parametrize("content", ["", "\n", "a\nb\n", "x" * 2_000, b"\xff"])
def test_a_password_file_holds_one_line(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "password"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"sasl\.password\.location"):
        Credentials(Login("me", password_location=str(path)))
    with pytest.raises(UsageError, match="can't be read"):
        Credentials(Login("me", password_location=str(tmp_path / "absent")))


def test_a_password_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("one\r\n")
    credentials = Credentials(Login("me", password_location=str(path)))
    first = credentials.metadata(HERE, encrypted=False)
    assert first == (("authorization", "Basic bWU6b25l"),)
    path.write_text("two")
    second = credentials.metadata(HERE, encrypted=False)
    assert second == (("authorization", "Basic bWU6dHdv"),)
    path.unlink()
    assert credentials.metadata(HERE, encrypted=False) == second, "it may be written just now"


def test_S5_a_password_is_not_sent_where_it_could_be_read() -> None:
    """A node may name others to go to, on other machines."""
    credentials = Credentials(ME)
    for address in (HERE, "localhost:1", "[::1]:1"):
        assert credentials.metadata(address, encrypted=False)
    assert credentials.metadata(FAR, encrypted=True)
    with pytest.raises(FatalError, match="would be readable") as refused:
        credentials.metadata(FAR, encrypted=False)
    assert "hunter2" not in refused.value.message
    assert Credentials(Login("me", "hunter2", plain_without_tls=True)).metadata(FAR, encrypted=False)


def test_S5_a_bootstrap_of_a_wrong_type_is_not_shown() -> None:
    with pytest.raises(UsageError) as raised:
        parse_bootstrap((f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2", 3))
    assert "hunter2" not in raised.value.message


def test_a_user_in_the_bootstrap_and_no_protocol_for_one_is_refused() -> None:
    with pytest.raises(UsageError, match="its bootstrap names a user"):
        semel.Admin(f"sasl://{HERE}?sasl.username=me&sasl.password=hunter2", security_protocol="PLAINTEXT")


def test_a_refused_password_is_tried_again_for_a_while_where_it_was_right_and_is_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("x")
    in_a_file = Credentials(Login("me", password_location=str(path)))
    assert not in_a_file.may_be_changing(0.0), "it never was right"
    in_a_file.was_accepted()
    assert [in_a_file.may_be_changing(now) for now in (100.0, 129.0, 131.0)] == [True, True, False]
    in_a_file.was_accepted()
    assert in_a_file.may_be_changing(200.0)
    by_hand = Credentials(ME)
    by_hand.was_accepted()
    assert not by_hand.may_be_changing(0.0)


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (Login("me", "secret"), r"the user me is refused: why\. .* make a new client with the one"),
        (Login("me", password_location="/p"), r"the user me is refused: why\. .* write the one that he has now to /p"),
        (Login("", mechanism="OAUTHBEARER", token_url="file:///t"), r"the token in /t is refused: why\. Write one"),
        (
            Login("", delegation_location="/d"),
            r"the delegation token id1 in /d is refused: why\. .*`semel token create --file FILE`",
        ),
    ],
)
def test_who_is_refused_hears_the_next_step(login: Login, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f"id1:{'A' * 86}==\n" if login.delegation_location else "x\n")
    real = replace(
        login,
        password_location=login.password_location and str(path),
        token_url=login.token_url and path.as_uri(),
        delegation_location=login.delegation_location and str(path),
    )
    assert re.fullmatch(said + ".*", Credentials(real).explained("why").replace(str(path), login.location))
    assert "secret" not in Credentials(real).explained("why")


# --- Tokens -----------------------------------------------------------------------------------------------------------

MINE = Login("", mechanism="OAUTHBEARER", token_url="file:///run/token")


@pytest.mark.parametrize(
    "options",
    [
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "file:///run/token"},
        {"sasl.mechanisms": "oauthbearer", "sasl.oauthbearer.token.endpoint.url": "file:///run/token"},
        {
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.oauthbearer.token.endpoint.url": "file:///run/token",
        },
    ],
)
def test_clients_take_a_token_by_kafkas_options(options: dict[str, str]) -> None:
    assert taken_from("Admin", dict(options), Security()) == Security(None, MINE)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("sasl.mechanism=OAUTHBEARER", "needs sasl.oauthbearer.token.endpoint.url=file:///PATH"),
        (
            "sasl.mechanism=OAUTHBEARER&sasl.oauthbearer.token.endpoint.url=https://x/token",
            "needs sasl.oauthbearer.client.id",
        ),
        (
            "sasl.mechanism=OAUTHBEARER&sasl.oauthbearer.token.endpoint.url=file://[",
            "needs sasl.oauthbearer.token.endpoint.url=file:///PATH",
        ),
        ("sasl.oauthbearer.token.endpoint.url=file:///t", "is for sasl.mechanism=OAUTHBEARER"),
        (
            "sasl.mechanism=OAUTHBEARER&sasl.username=me&sasl.oauthbearer.token.endpoint.url=file:///t",
            "the token says who the user is",
        ),
    ],
)
def test_what_can_t_be_meant_with_a_token_is_refused(query: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        security_of_query("bootstrap", "sasl://", query)
    assert told in raised.value.message


def test_a_token_s_file_is_read_again_and_kept_while_it_can_t_be(tmp_path: Path) -> None:
    path = tmp_path / "to ken"
    path.write_text("a.b.c\n")
    credentials = Credentials(Login("", mechanism="OAUTHBEARER", token_url=path.as_uri()))

    def header() -> str:
        return credentials.metadata(HERE, encrypted=False)[0][1]

    assert header() == "Bearer a.b.c"
    for broken in ("", "a.b.c\nd", "x" * 17_000):
        path.write_text(broken)
        assert header() == "Bearer a.b.c"
        with pytest.raises(UsageError, match="does not hold a token in one line"):
            Credentials(Login("", mechanism="OAUTHBEARER", token_url=path.as_uri()))
    path.write_text("d.e.f")
    assert header() == "Bearer d.e.f"
    path.unlink()
    assert header() == "Bearer d.e.f"


def test_S5_a_token_is_not_sent_where_it_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a.b.c")
    credentials = Credentials(Login("", mechanism="OAUTHBEARER", token_url=path.as_uri()))
    with pytest.raises(FatalError, match="the token would be readable for everybody in the network") as raised:
        credentials.metadata(FAR, encrypted=False)
    assert "a.b.c" not in raised.value.message
    assert credentials.metadata(FAR, encrypted=True)
