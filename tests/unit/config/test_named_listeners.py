"""kafka.listeners and grpc.listeners: how items are read, what contradicts them, and which source counts."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.broker.config.exposure import check_exposure, exposed_listeners
from semel.broker.config.listeners import (
    LISTENERS_MAX,
    ClientListener,
    grpc_listeners,
    kafka_listeners,
    parse_items,
)
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import check_config, check_ports_differ, listen_address, load_config
from semel.cli.serve import _listeners
from semel.runtime.setting import ConfigError

TWO = ("internal=127.0.0.1:9092", "external=127.0.0.1:9093?advertised=broker.example.com:19093")


def loaded(**values: Any) -> NodeConfig:
    flags = [("--set", name.replace("_", "."), value) for name, value in values.items()]
    return load_config(environment={}, flags=flags).config


def test_items_have_a_name_an_address_and_what_clients_are_told() -> None:
    assert kafka_listeners(loaded(kafka_listeners=",".join(TWO))) == (
        ClientListener("kafka", "internal", "127.0.0.1:9092", "", is_named=True),
        ClientListener("kafka", "external", "127.0.0.1:9093", "broker.example.com:19093", is_named=True),
    )


def test_without_items_there_is_one_listener_with_the_default_name() -> None:
    config = loaded(kafka_listen="127.0.0.1:1", kafka_advertised="log1:2")
    assert kafka_listeners(config) == (ClientListener("kafka", "default", "127.0.0.1:1", "log1:2", is_named=False),)
    assert grpc_listeners(config)[0].listen == "127.0.0.1:9094"


def test_names_are_the_same_in_upper_and_lower_case() -> None:
    assert [each.name for each in parse_items("kafka.listeners", ("INTERNAL=h:1", "Ex_t-1.a=h:2"))] == [
        "internal",
        "ex_t-1.a",
    ]
    with pytest.raises(ConfigError, match="two listeners with the name internal"):
        parse_items("kafka.listeners", ("INTERNAL=h:1", "internal=h:2"))


@pytest.mark.parametrize(
    ("items", "told"),
    [
        (["127.0.0.1:9092"], r"item '127\.0\.0\.1:9092', which is not NAME=HOST:PORT, for example internal=127"),
        (["a="], "item 'a=', which is not NAME=HOST:PORT"),
        (["=h:1"], "whose name is not letters, digits"),
        (["a b=h:1"], "whose name is not letters, digits"),
        (["-a=h:1"], "whose name is not letters, digits"),
        ([f"{'a' * 65}=h:1"], "whose name is not letters, digits"),
        (["a=h"], "kafka.listeners: a = h is not HOST:PORT"),
        (["a=h:65536"], "kafka.listeners: a = h:65536 is not HOST:PORT"),
        (["a=http://h:1"], "kafka.listeners: a = http://h:1 is not HOST:PORT"),
        (["a=h:1?advertise=b:1"], r"behind the address there may be \?advertised=HOST:PORT, and ssl\.certificate"),
        (["a=h:1?"], r"behind the address there may be \?advertised="),
        (["a=h:1?advertised="], r"behind the address there may be \?advertised="),
        (["a=h:1?advertised=b:0"], "port 0 cannot be advertised; leave"),
        (["a=h:1?advertised=b"], r"kafka\.listeners: a=h:1\?advertised=b is not HOST:PORT"),
        (["a=h:1?advertised=tls://b:1"], r"an advertised address has no scheme, write \?advertised=b:1"),
        (["a=h:1?advertise=b:1"], r"Write a=h:1\?advertised=b:1"),
        (["a=h:1?advertised=b:1&x=2"], r"ssl\.client\.auth with & between them, and nothing else"),
        (["a=h:1?advertised=b:1&advertised=c:1"], "advertised stands behind the address twice"),
        (["a=h:1?ssl.client.auth=required"], "has ssl.client.auth, and does not encrypt: write tls:// or"),
        (
            ["a=tls://h:1?ssl.certificate.location=x"],
            "ssl.certificate.location and ssl.key.location belong together",
        ),
        (["a=tls://h:1?ssl.client.auth=x"], "a: ssl.client.auth = x: use none or required"),
        (["a=tls://h:1?ssl.client.auth=required"], "a: ssl.client.auth = required needs ssl.ca.location"),
        (["a=tls://h:1?ssl.ca.location=x"], "a: ssl.ca.location is used only with ssl.client.auth=required"),
        (["a=tls://h:1?ssl.client.auth=none"], "a = tls://h:1 needs a certificate: set ssl.certificate.location"),
        (["a=h:1?proxy=yes"], r"Write a=h:1\?advertised=log1\.example\.com:9092"),
        (["a=h:1", "advertise=b:1"], r"looks like an option.*external=127\.0\.0\.1:9092\?advertised=b:1"),
        (["EXTERNAL://h:1"], "a listener's name ends with =, write external=h:1"),
        (["external:tls://h:1"], "a listener's name ends with =, write external=tls://h:1"),
        (["a b=h:1"], "choose another name, for example internal=h:1"),
        (["a=h:1?advertised=b:1?advertised=c:1"], "is not HOST:PORT"),
        ([f"n{number}=h:{number}" for number in range(LISTENERS_MAX + 1)], "more than 16 listeners: leave out 'n16"),
        (["a=tls://h:1"], "kafka.listeners: a = tls://h:1 needs a certificate: set ssl.certificate.location"),
    ],
)
def test_a_wrong_item_is_named_with_the_next_step(items: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loaded(kafka_listeners=items)
    with pytest.raises(ConfigError, match=told):
        check_config(NodeConfig(kafka_listeners=tuple(items)))


OWN = "a=tls://0.0.0.0:1?ssl.certificate.location=x%2C%26&ssl.key.location=/y%25z"
STRICT = f"{OWN}&ssl.ca.location=ca&ssl.client.auth=required"


def test_a_listener_may_have_tls_of_its_own() -> None:
    (found,) = kafka_listeners(loaded(kafka_listeners=[f"{OWN}&advertised=log1:1"]))
    assert (dict(found.tls), found.advertised) == (
        {"ssl.certificate.location": "x,&", "ssl.key.location": "/y%z"},
        "log1:1",
    )
    assert parse_items("kafka.listeners", [found.item()]) == (found,)
    moved = parse_items("kafka.listeners", [found.item("127.0.0.1:7")])[0]
    assert (moved.listen, moved.tls) == ("tls://127.0.0.1:7", found.tls)


def test_S6_each_listener_is_looked_at_with_its_own_client_auth() -> None:
    other = "b=tls://0.0.0.0:2?ssl.certificate.location=x&ssl.key.location=y"
    assert exposed_listeners(loaded(kafka_listeners=[STRICT, other])) == ["kafka.listeners: b=tls://0.0.0.0:2"]
    strict = {"ssl_client_auth": "required", "ssl_ca_location": "ca"}
    lax = f"{other}&ssl.client.auth=none"
    with_general = {"ssl_certificate_location": "x", "ssl_key_location": "y", **strict}
    config = loaded(kafka_listeners=["a=tls://0.0.0.0:1", lax], **with_general)
    assert exposed_listeners(config) == ["kafka.listeners: b=tls://0.0.0.0:2"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"ssl.certificate.location": "x", "ssl.key.location": "y"}, "is used by no listener"),
        ({"ssl.client.auth": "required", "ssl.ca.location": "ca"}, "protects no listener"),
        ({"ssl.ca.location": "ca"}, "is used only with ssl.client.auth = required"),
    ],
)
def test_general_settings_that_no_listener_uses_are_refused(values: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loaded(kafka_listeners=[STRICT], **{name.replace(".", "_"): value for name, value in values.items()})


def test_kafkas_settings_of_one_listener_are_explained() -> None:
    with pytest.raises(
        ConfigError, match=r"behind its address in kafka\.listeners, as external=tls://0\.0\.0\.0:9093\?"
    ):
        loaded(listener_name_external_ssl_keystore_location="x")


def test_as_many_as_there_may_be_are_taken() -> None:
    items = tuple(f"n{number}=127.0.0.1:{number}" for number in range(LISTENERS_MAX))
    assert len(kafka_listeners(loaded(kafka_listeners=items))) == LISTENERS_MAX


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"kafka.listen": "127.0.0.1:1"}, r"give it a name among kafka\.listeners \(default=127\.0\.0\.1:1\)"),
        ({"kafka.advertised": "log1:1"}, r"is for kafka\.listen alone: write \?advertised=log1:1 behind"),
    ],
)
def test_one_source_does_not_say_twice_where_to_listen(values: dict[str, str], told: str) -> None:
    flags = [("--set", name, value) for name, value in {**values, "kafka.listeners": ",".join(TWO)}.items()]
    with pytest.raises(ConfigError, match=told):
        load_config(environment={}, flags=flags)


def test_the_stronger_source_says_where_to_listen(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[kafka]\nlisten = "127.0.0.1:1"\nadvertised = "log1:1"\n')
    named = load_config(file=file, environment={"SEMEL_KAFKA_LISTENERS": ",".join(TWO)})
    assert [each.name for each in kafka_listeners(named.config)] == ["internal", "external"]
    flag = [("--kafka", "kafka.listen", "127.0.0.1:7")]
    alone = load_config(file=file, environment={"SEMEL_KAFKA_LISTENERS": ",".join(TWO)}, flags=flag)
    assert kafka_listeners(alone.config) == (
        ClientListener("kafka", "default", "127.0.0.1:7", "log1:1", is_named=False),
    )


def test_an_address_that_an_image_has_set_is_taken_back_by_an_empty_one() -> None:
    environment = {"SEMEL_KAFKA_LISTENERS": ",".join(TWO), "SEMEL_KAFKA_LISTEN": ""}
    assert len(kafka_listeners(load_config(environment=environment).config)) == 2
    with pytest.raises(ConfigError, match=r"kafka\.listen =  is not HOST:PORT"):
        load_config(environment={"SEMEL_KAFKA_LISTEN": ""})


def test_two_listeners_of_one_protocol_have_ports_of_their_own() -> None:
    config = loaded(kafka_listeners="a=127.0.0.1:1,b=0.0.0.0:1", listeners_allow_anonymous="true")
    with pytest.raises(ConfigError, match=r"kafka\.listeners: a = 127\.0\.0\.1:1 and kafka\.listeners: b = .*--kafka"):
        check_ports_differ(config, ("kafka.listen",))
    with pytest.raises(ConfigError, match=r"kafka\.listeners: a = .* and grpc\.listen = .* change --kafka or --grpc"):
        check_ports_differ(loaded(kafka_listeners="a=127.0.0.1:9094"), ("kafka.listen", "grpc.listen"))


def test_S6_each_listener_with_a_name_is_looked_at(tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    kafka = "inside=127.0.0.1:1,guarded=sasl://0.0.0.0:2,open=0.0.0.0:3"
    config = loaded(kafka_listeners=kafka, grpc_listeners="a=127.0.0.1:4,b=10.0.0.7:5", sasl_users_location=users)
    assert exposed_listeners(config) == ["kafka.listeners: open=0.0.0.0:3", "grpc.listeners: b=10.0.0.7:5"]
    with pytest.raises(ConfigError, match=r"with kafka\.listeners: open=tls\+sasl://0\.0\.0\.0:3; ask"):
        check_exposure(config)
    check_exposure(loaded(kafka_listeners="a=127.0.0.1:1,b=sasl://0.0.0.0:2"))


def test_S6_passwords_are_not_sent_readable_by_a_second_listener() -> None:
    with pytest.raises(ConfigError, match=r"grpc\.listeners: b = sasl://0\.0\.0\.0:2: gRPC's clients would send"):
        loaded(grpc_listeners="a=sasl://127.0.0.1:1,b=sasl://0.0.0.0:2")


ADDRESSES = st.builds(
    "{}{}:{}".format,
    st.sampled_from(["", "tls://", "sasl://", "tls+sasl://"]),
    st.sampled_from(["127.0.0.1", "[::1]", "log-1.example.com", "0.0.0.0"]),
    st.integers(0, 65_535),
)
NAMES = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?\Z")


@given(st.lists(st.tuples(NAMES, ADDRESSES, st.booleans()), max_size=LISTENERS_MAX, unique_by=lambda x: x[0].lower()))
def test_what_is_written_as_items_is_read_again(made: list[tuple[str, str, bool]]) -> None:
    wanted = [
        ClientListener("grpc", name.lower(), address, "log1:1" if told else "", is_named=True)
        for name, address, told in made
    ]
    assert list(parse_items("grpc.listeners", [each.item() for each in wanted])) == wanted


PIECES = st.sampled_from(
    ["=", "?", "advertised", "://", "tls", "+sasl", ":", "9092", "[", "]", "127.0.0.1", "a", ".", ""]
)


@given(
    st.lists(
        st.one_of(st.lists(PIECES, max_size=9).map("".join), st.text(string.printable, max_size=80), st.text()),
        max_size=20,
    )
)
def test_any_text_is_read_or_refused_with_its_setting(items: list[str]) -> None:
    found, refusal = (), ""
    try:
        found = kafka_listeners(loaded(kafka_listeners=items, sasl_plain_without_tls="true"))
    except ConfigError as error:
        refusal = error.message
    assert found or "kafka.listeners" in refusal
    assert all(each.name == each.name.lower() and each.listen for each in found)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ([], []),
        (["127.0.0.1:1"], [("--kafka", "kafka.listen", "127.0.0.1:1")]),
        (list(TWO), [("--kafka", "kafka.listeners", TWO)]),
        (["a=h:1"], [("--kafka", "kafka.listeners", ("a=h:1",))]),
    ],
)
def test_the_option_of_the_command_takes_one_address_or_several_with_names(
    given: list[str], flags: list[tuple[str, str, object]]
) -> None:
    assert _listeners("kafka", given) == flags


@pytest.mark.parametrize("given", [["h:1", "a=h:2"], ["a=h:2", "h:1"], ["h:1", "h:2"]])
def test_of_several_listeners_each_needs_a_name(given: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"of several listeners each needs a name, write --grpc NAME=h:1"):
        _listeners("grpc", given)


def test_a_log_in_a_program_has_no_listeners_with_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a log in a program has one listener"):
        semel.open(tmp_path / "log", settings={"kafka.listeners": TWO})


# --- Wrong spellings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told", "right"),
    [
        ("SASL_SSL://h:1", "begins with SASL_SSL://, which is tls+sasl:// here", "tls+sasl://h:1"),
        ("SSL://h:1", "begins with SSL://, which is tls:// here", "tls://h:1"),
        ("PLAINTEXT://:1", "begins with PLAINTEXT://, which is nothing here", "0.0.0.0:1"),
        ("SASL_PLAINTEXT://h:1", "which is sasl:// here", "sasl://h:1"),
        ("TLS://h:1", "begins with TLS://, which is tls:// here", "tls://h:1"),
        ("https://h:1", "begins with https://, which is tls:// here", "tls://h:1"),
        ("OUTSIDE://h:1", "OUTSIDE:// is no scheme here", "h:1"),
        ("tls://tls://h:1", "it has two schemes", "tls://h:1"),
        ("tls:h:1", "a scheme ends with ://", "tls://h:1"),
        ("h", "it has no port", "h:9092"),
        ("tls://h", "it has no port", "tls://h:9092"),
        ("h:", "it has no port", "h:9092"),
        ("[::1]", "it has no port", "[::1]:9092"),
        ("h:http", "'http' is no port", "h:9092"),
        ("h:\u00b2", "is no port", "h:9092"),
        ("h:65536", "65536 is no port: ports are 0 to 65535", "h:9092"),
        ("9092", "it is a port without a host", "127.0.0.1:9092"),
        (":9092", "it has no host", "0.0.0.0:9092"),
        ("*:9092", "* is no host", "0.0.0.0:9092"),
        ("::1:9092", "an IPv6 address stands in brackets", "[::1]:9092"),
        ("fe80::1", "an IPv6 address stands in brackets, and a port behind them", "[fe80::1]:9092"),
        ("me:secret@h:1", "it has a user in it", "127.0.0.1:9092"),
        ("me@h:1", "it has a user in it", "127.0.0.1:9092"),
        ("h:1/", "it has a slash behind the scheme", "h:1"),
        ("h :1", "it has a space in it", "h:1"),
        ("h:1,b:2", "it has a comma", ""),
        ("tls://h:1,advertise=b:2", "tls://h:1?advertised=HOST:PORT", ""),
        ("", "it has no port", "127.0.0.1:9092"),
    ],
)
def test_a_wrong_address_hears_what_is_wrong_and_a_right_one(wrong: str, told: str, right: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(NodeConfig(kafka_listen=wrong))
    message = refused.value.message
    assert message.startswith(f"kafka.listen = {wrong} is not HOST:PORT: ")
    assert told in message
    if right:
        assert right in [word.rstrip(",.") for word in message.split()], message
        assert listen_address(ClientListener("kafka", "a", right, "", is_named=False)).port > 0


@given(st.text(alphabet="aT:/[]*@,.=?1 {&", max_size=24))
def test_whatever_is_written_is_taken_or_refused_with_a_reason(text: str) -> None:
    listener = ClientListener("kafka", "a", text, "", is_named=False)
    told = ""
    try:
        assert 0 <= listen_address(listener).port <= 65_535
    except ConfigError as error:
        told = error.message
    assert not told or 20 < len(told.partition(" is not HOST:PORT: ")[2]) < 1_000
