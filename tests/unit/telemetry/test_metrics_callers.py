"""The metrics' port encrypted, and for those alone who prove who they are; probes of containers need not."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from asking_node import at
from certificates import Authority, encrypted
from delegating_node import delegating
from live_node import LiveNode
from user_files import ALICE, PASSWORD, set_user

import semel
from semel.broker.acls.authorizer import Authorizer
from semel.broker.audit.log import Audit
from semel.broker.config.exposure import check_exposure
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.broker.metrics.callers import MetricsCallers
from semel.broker.telemetry import endpoint
from semel.broker.users.users import Users
from semel.runtime.setting import ConfigError

HERE = {"kafka_listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "peer_listen": ""}


class Asked:
    """Asks one node, whose certificate is of this authority."""

    def __init__(self, live: LiveNode, authority: Authority) -> None:
        address = live.node.metrics_address
        assert address is not None
        self._port = address.port
        self._authority = authority

    def get(self, path: str, *, user: str | None = None, certificate: Any = None, **headers: str) -> HTTPResponse:
        context = ssl.create_default_context(cafile=self._authority.ca)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        if user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        connection = HTTPSConnection("localhost", self._port, context=context, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            self.body = answer.read()
            return answer
        finally:
            connection.close()


@contextmanager
def asked(folder: Path, authority: Authority, scheme: str, **settings: Any) -> Iterator[Asked]:
    given = {**encrypted(authority.node(), authority if "ssl_client_auth" in settings else None), **HERE}
    with LiveNode(folder, **{**given, "metrics_listen": f"{scheme}localhost:0", **settings}) as live:
        yield Asked(live, authority)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def test_S6_the_metrics_are_encrypted_with_the_nodes_certificate_also_the_renewed_one(
    tmp_path: Path, authority: Authority
) -> None:
    first, second = authority.node("first"), authority.node("second")
    files = {"ssl_certificate_location": str(tmp_path / "cert.pem"), "ssl_key_location": str(tmp_path / "key.pem")}

    def take(pair: Any) -> None:
        for source, target in ((pair.key, "key.pem"), (pair.certificate, "cert.pem")):
            shutil.copy(source, tmp_path / f"{target}.new")
            (tmp_path / f"{target}.new").replace(tmp_path / target)

    take(first)
    with asked(tmp_path, authority, "tls://", **files) as node:
        for _ in range(3):
            assert node.get("/metrics").status == 200
            assert b"semel_node_ready 1" in node.body
        shown = ssl.get_server_certificate(("localhost", node._port))
        take(second)
        assert node.get("/readyz").status == 200
        assert ssl.get_server_certificate(("localhost", node._port)) != shown


def test_S6_the_metrics_are_for_users_and_probes_are_told_the_status_alone(
    tmp_path: Path, authority: Authority
) -> None:
    users = {"sasl_users_location": str(set_user(tmp_path / "users"))}
    with asked(tmp_path, authority, "tls+sasl://", **users) as node:
        assert node.get("/metrics").status == 401
        assert b"semel_" not in node.body
        assert (node.get("/metrics").getheader("www-authenticate") or "").startswith("Basic realm=")
        for wrong in (f"{ALICE}:wrong", f"bob:{PASSWORD}", ALICE, ":", f"{ALICE}:"):
            assert node.get("/metrics", user=wrong).status == 401, wrong
        for odd in ("Basic", "Basic ?", "Bearer x", "Basic " + base64.b64encode(b"\xff").decode(), "x" * 5_000):
            assert node.get("/metrics", Authorization=odd).status == 401, odd
        assert node.get("/metrics", user=f"{ALICE}:{PASSWORD}").status == 200
        assert b"semel_node_ready 1" in node.body
        assert node.get("/healthz").status == node.get("/readyz").status == 200


def test_S5_a_probe_without_a_password_hears_no_reason(tmp_path: Path, authority: Authority) -> None:
    users = {"sasl_users_location": str(set_user(tmp_path / "users"))}
    given = {**encrypted(authority.node()), **HERE, "metrics_listen": "tls+sasl://localhost:0", **users}
    with LiveNode(tmp_path, **given) as live:
        metrics = live.node._metrics
        assert metrics is not None
        assert metrics._endpoint is not None
        metrics._endpoint._healthy = lambda: endpoint.Health(False, "secret detail of the disk")
        node = Asked(live, authority)
        assert node.get("/healthz").status == 503
        assert node.body == b"not ok\n"


def test_S6_a_client_shows_a_certificate_and_a_probe_need_not(tmp_path: Path, authority: Authority) -> None:
    with asked(tmp_path, authority, "tls://", ssl_client_auth="required") as node:
        assert node.get("/metrics").status == 403
        assert b"semel_" not in node.body
        assert node.get("/readyz").status == 200
        assert node.get("/metrics", certificate=authority.client()).status == 200
        stranger = Authority(tmp_path / "stranger").client()
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|closed|broken pipe"):
            node.get("/readyz", certificate=stranger)


def test_S7_where_acls_count_only_who_may_describe_the_cluster_reads_the_metrics(
    tmp_path: Path, authority: Authority
) -> None:
    set_user(tmp_path / "users", "root")
    set_user(tmp_path / "users", ALICE)
    permitted = {
        "sasl_users_location": str(tmp_path / "users"),
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": "User:root",
    }
    with asked(tmp_path, authority, "tls+sasl://", **permitted) as node:
        assert node.get("/metrics", user=f"{ALICE}:{PASSWORD}").status == 403
        assert b"User:alice may not describe the cluster: an operator allows it with `semel acl add" in node.body
        assert node.get("/metrics", user=f"root:{PASSWORD}").status == 200


def test_S2_handshakes_that_do_not_end_make_room(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.runtime.encrypted.HANDSHAKE_TIMEOUT_S", 600.0)
    given = {**encrypted(authority.node()), **HERE, "metrics_listen": "tls://localhost:0", "metrics_max_connections": 2}
    with LiveNode(tmp_path, **given) as live:
        node = Asked(live, authority)
        silent = [socket.create_connection(("localhost", node._port), timeout=60) for _ in range(4)]
        assert silent[0].recv(1) == b"", "the oldest makes room"
        assert node.get("/readyz").status == 200
        metrics = live.node._metrics
        assert metrics is not None
        assert metrics._endpoint is not None
        assert len(metrics._endpoint._handshaking) <= 2
        for each in silent:
            each.close()


def test_S2_strangers_of_one_address_end_no_handshake_of_another(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a stranger who connects again and again keeps the probes of containers out."""
    monkeypatch.setattr("semel.runtime.encrypted.HANDSHAKE_TIMEOUT_S", 600.0)
    given = {**encrypted(authority.node()), **HERE, "metrics_listen": "tls://127.0.0.1:0", "metrics_max_connections": 3}
    with LiveNode(tmp_path, **given) as live:
        port = Asked(live, authority)._port
        patient = socket.create_connection(("127.0.0.1", port), timeout=60)
        strangers = []
        for _ in range(6):
            source = ("127.0.0.2", 0)
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=60, source_address=source))
        assert all(each.recv(1) == b"" for each in strangers[:3]), "their own make room"
        context = ssl.create_default_context(cafile=authority.ca)
        with context.wrap_socket(patient, server_hostname="localhost") as encrypted_now:
            encrypted_now.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert encrypted_now.recv(100).startswith(b"HTTP/1.1 200")
        for each in strangers:
            each.close()


def test_S6_a_delegation_token_reads_the_metrics_as_its_owner(tmp_path: Path, authority: Authority) -> None:
    asking = {**delegating(set_user(tmp_path / "users")), "metrics_listen": "sasl://127.0.0.1:0"}
    with LiveNode(tmp_path / "data", **asking) as live:
        with semel.Admin(at(live.bootstrap)) as alice:
            made = alice.create_delegation_token()
            login = f"{made.token.token_id}:{made.password}"
            assert status(live, login) == 200
            assert status(live, login[:-3] + "x==") == 401
            alice.expire_delegation_token(made.token.token_id)
        assert status(live, login) == 401


def test_S5_a_wrong_password_is_in_the_audit_log_without_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asking = {"sasl_users_location": str(set_user(tmp_path / "users")), "metrics_listen": "sasl://127.0.0.1:0"}
    with LiveNode(tmp_path / "data", **HERE, **asking) as live:
        assert status(live, f"{ALICE}:hunter2") == 401
    assert "authentication.failed: listener='metrics' peer='127.0.0.1' user='alice'" in caplog.text
    assert "hunter2" not in caplog.text


def status(live: LiveNode, user: str) -> int:
    """Return what a port without TLS answers who asks for the metrics."""
    address = live.node.metrics_address
    assert address is not None
    connection = HTTPConnection("127.0.0.1", address.port, timeout=60)
    try:
        given = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
        connection.request("GET", "/metrics", headers=given)
        return connection.getresponse().status
    finally:
        connection.close()


def test_S7_nobody_is_served_before_the_node_knows_the_acls(tmp_path: Path) -> None:
    path = str(set_user(tmp_path / "users"))
    config = NodeConfig(metrics_listen="sasl://127.0.0.1:0", sasl_users_location=path)
    nothing: Callable[[], Authorizer | None] = lambda: None  # noqa: E731
    callers = MetricsCallers(config, Users(path), None, nothing, Audit(1))
    given = {"authorization": "Basic " + base64.b64encode(f"{ALICE}:{PASSWORD}".encode()).decode()}
    refusal = asyncio.run(callers.refusal(given, None, "127.0.0.1"))
    assert refusal is not None
    assert refusal.status == 503


def test_S6_metrics_beyond_the_loopback_ask_or_an_operator_says_that_all_may_read_them() -> None:
    with pytest.raises(ConfigError, match=r"reach metrics\.listen=0\.0\.0\.0:1, .*metrics\.allow\.anonymous=true"):
        check_exposure(NodeConfig(metrics_listen="0.0.0.0:1"))
    with pytest.raises(ConfigError, match=r"reach metrics\.listen=tls://0\.0\.0\.0:1"):
        check_exposure(NodeConfig(metrics_listen="tls://0.0.0.0:1"))
    for allowed in (
        {"metrics_listen": "127.0.0.1:1"},
        {"metrics_listen": "tls+sasl://0.0.0.0:1"},
        {"metrics_listen": "tls://0.0.0.0:1", "ssl_client_auth": "required"},
        {"metrics_listen": "0.0.0.0:1", "metrics_allow_anonymous": True},
        {"metrics_listen": "0.0.0.0:1", "listeners_allow_anonymous": True},
    ):
        check_exposure(NodeConfig(**allowed))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"kafka\.listen=0\.0\.0\.0:1"):
        check_exposure(NodeConfig(kafka_listen="0.0.0.0:1", metrics_allow_anonymous=True))
