"""A node's settings for certificates: everything that is missing, contradictory or without effect is refused (S6)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from certificates import Authority, Pair, encrypted

from semel.broker.config.exposure import exposed_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import Address, load_config, parse_address
from semel.broker.listeners.tls import Certificates, certificates_of
from semel.cli.local_cluster import plan_nodes
from semel.runtime.setting import ConfigError

FILES = {"ssl.certificate.location": "node.pem", "ssl.key.location": "node.key"}
TLS = {"kafka.listen": "tls://127.0.0.1:9092"}


def load(values: dict[str, str]) -> NodeConfig:
    return load_config(environment={}, flags=[(name, name, value) for name, value in values.items()]).config


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (TLS, "kafka.listen = tls://127.0.0.1:9092 needs a certificate: set ssl.certificate.location"),
        ({**TLS, "ssl.certificate.location": "node.pem"}, "needs a certificate: set ssl.key.location"),
        (FILES, "ssl.certificate.location = node.pem is used by no listener: write tls:// before the address of"),
        ({"ssl.client.auth": "required"}, "protects no listener"),
        ({**TLS, **FILES, "ssl.client.auth": "required"}, "needs ssl.ca.location"),
        ({**TLS, **FILES, "ssl.ca.location": "ca.pem"}, "is used only with ssl.client.auth = required"),
        ({**TLS, **FILES, "ssl.client.auth": "requested"}, "use none or required"),
        (
            {"peer.listen": "tls://127.0.0.1:1", **FILES},
            "needs ssl.ca.location: a PEM file with the authorities of the",
        ),
        (
            {"kafka.advertised": "tls://broker:1"},
            "only kafka.listen, grpc.listen, peer.listen, metrics.listen can have tls://",
        ),
        ({"kafka.listen": "tls://9092"}, "kafka.listen = tls://9092 is not HOST:PORT"),
        ({"kafka.listen": "ssl://127.0.0.1:9092"}, "is not HOST:PORT"),
        ({"ssl.keystore.location": "x.jks"}, "use ssl.certificate.location and ssl.key.location, PEM files"),
    ],
)
def test_S6_what_would_only_seem_to_encrypt_is_refused(values: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(values)
    assert told in raised.value.message


def test_the_prefix_is_no_part_of_the_host() -> None:
    assert parse_address("kafka.listen", "tls://[::1]:9092") == Address("::1", 9092)
    assert load({**TLS, **FILES}).kafka_listen == "tls://127.0.0.1:9092"


@pytest.mark.parametrize(
    ("more", "exposed"),
    [
        ({}, ["kafka.listen=tls://0.0.0.0:1", "grpc.listen=0.0.0.0:2"]),
        ({"ssl_client_auth": "required"}, ["grpc.listen=0.0.0.0:2"]),
    ],
)
def test_S6_encryption_alone_keeps_nobody_out_and_certificates_do(more: dict[str, str], exposed: list[str]) -> None:
    assert exposed_listeners(NodeConfig(kafka_listen="tls://0.0.0.0:1", grpc_listen="0.0.0.0:2", **more)) == exposed


def test_the_nodes_of_one_machine_all_encrypt(tmp_path: Path) -> None:
    loaded = load_config(
        environment={}, flags=[(n, n, v) for n, v in {**TLS, **FILES, "data.dir": str(tmp_path)}.items()]
    )
    listeners = [node.settings["kafka.listen"] for node in plan_nodes(loaded, 3)]
    assert [text.startswith("tls://127.0.0.1:") for text in listeners] == [True] * 3
    assert len(set(listeners)) == 3


def test_S6_the_nodes_of_one_machine_hear_that_strangers_are_kept_out(tmp_path: Path) -> None:
    given = {"kafka.listen": "0.0.0.0:9092", "listeners.allow.anonymous": "true", "data.dir": str(tmp_path)}
    loaded = load_config(environment={}, flags=[(name, name, value) for name, value in given.items()])
    assert [node.settings["listeners.allow.anonymous"] for node in plan_nodes(loaded, 2)] == ["true"] * 2


def config(authority: Authority, **changed: str) -> NodeConfig:
    return NodeConfig(**{**encrypted(authority.node(), authority), **changed})  # type: ignore[arg-type]


def test_a_node_without_encryption_needs_no_files() -> None:
    assert certificates_of(NodeConfig()) is None


@pytest.mark.parametrize("setting", ["ssl_certificate_location", "ssl_key_location", "ssl_ca_location"])
def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Certificates(config(Authority(tmp_path), **{setting: str(tmp_path / "absent")}))
    assert f"{setting.replace('_', '.')} = {tmp_path}/absent can't be read: No such file" in raised.value.message


@pytest.mark.parametrize("setting", ["ssl_certificate_location", "ssl_key_location", "ssl_ca_location"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00 no PEM", b"-----BEGIN CERTIFICATE-----\nx\n"])
def test_a_file_of_something_else_is_named_with_its_setting(tmp_path: Path, setting: str, content: bytes) -> None:
    (tmp_path / "wrong").write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Certificates(config(Authority(tmp_path), **{setting: str(tmp_path / "wrong")}))
    assert f"{setting.replace('_', '.')} = {tmp_path}/wrong" in raised.value.message


def test_S2_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        Certificates(config(Authority(tmp_path), ssl_ca_location=str(tmp_path / "large")))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node = authority.node()
    hidden = tmp_path / "hidden.key"
    command = ["openssl", "pkey", "-in", str(node.key), "-aes256", "-passout", "pass:secret", "-out", str(hidden)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    with pytest.raises(ConfigError, match="holds an encrypted key"):
        Certificates(NodeConfig(**{**encrypted(node), "ssl_key_location": str(hidden)}))  # type: ignore[arg-type]


def test_key_and_certificate_may_be_in_one_file_and_words_before_them(tmp_path: Path) -> None:
    pair = Authority(tmp_path).node()
    both = tmp_path / "both.pem"
    both.write_bytes(b"subject: node\n" + pair.key.read_bytes() + pair.certificate.read_bytes())
    Certificates(NodeConfig(**encrypted(Pair(both, both))))  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_a_key_that_grpc_can_t_use_is_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).node()
    command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=x"]
    command += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    with pytest.raises(ConfigError, match="take RSA, or an elliptic curve P-256, P-384 or P-521"):
        Certificates(NodeConfig(**encrypted(pair)))  # type: ignore[arg-type]
