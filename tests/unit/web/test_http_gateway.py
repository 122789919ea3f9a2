"""The gateway's bounds, who it serves, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Authority
from http_gateway import HttpGateway
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel.protocol.errors import UsageError
from semel.schemas import Schema, SchemaRegistry, SchemaRegistryError
from semel.testing import Broker
from semel.web.gateway import Gateway
from semel.web.limits import Limits
from semel.web.parts import PARTS
from semel.web.serve import listen_of

LIMITS = replace(Limits(), body_bytes_max=1_000, header_bytes_max=2_000)


def part_of(gate: threading.Event | None = None) -> Any:
    """A part with one path, which counts the bytes of a body, and one that waits for the gate."""

    async def count(request: Request) -> Response:
        return JSONResponse(len(await request.body()))

    def wait(request: Request) -> Response:
        assert gate is not None
        gate.wait(60)
        return JSONResponse("done")

    def failing(request: Request) -> Response:
        raise ValueError("secret")

    table = [Route("/count", count, methods=["POST"]), Route("/wait", wait), Route("/fail", failing)]
    return SimpleNamespace(routes=lambda gateway: table)


def raw(address: str, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the gateway closes the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(data)
        found = b""
        while block := connection.recv(1 << 16):
            found += block
    return found


def refused(address: str) -> bool:
    """Say whether a new connection is closed without an answer."""
    try:
        return raw(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") == b""
    except ConnectionError:
        return True


def test_bodies_are_bounded(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap, [part_of()], LIMITS) as gateway:
        assert gateway.ask("POST", "/count", b"x" * 1_000).body == 1_000
        refused = gateway.ask("POST", "/count", b"x" * 1_001)
        assert (refused.status, refused.body["status"], refused.body["error_code"]) == (413, 413, 413)
        assert refused.headers["content-type"] == "application/problem+json"
        head = b"POST /count HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"190\r\n" + b"x" * 400 + b"\r\n"
        assert raw(gateway.address, head + chunk * 3).startswith(b"HTTP/1.1 413")


def test_headers_are_bounded(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap, [part_of()], LIMITS) as gateway:
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000
        assert raw(gateway.address, request).startswith(b"HTTP/1.1 400")


def test_a_request_that_drips_in_is_cut_off(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap, [part_of()], replace(LIMITS, receive_s=0.2)) as gateway:
        assert raw(gateway.address, b"GET / HT") == b""
        assert raw(gateway.address, b"") == b""
        host, _, port = gateway.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as connection:  # also where one has been answered before
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET / HT")
            while connection.recv(1 << 16):
                pass
        head = b"POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
        assert raw(gateway.address, head).startswith(b"HTTP/1.1 408")


def test_requests_at_a_time_are_bounded(broker: Broker) -> None:
    gate = threading.Event()
    with HttpGateway(broker.bootstrap, [part_of(gate)], replace(LIMITS, requests_max=1)) as gateway:
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(gateway.ask("GET", "/wait")))
        waiting.start()
        try:
            while (refused := gateway.ask("GET", "/")).status == 200:
                pass
            assert refused.status == 503
            assert gateway.ask("GET", "/healthz").status == 200  # or it would be taken for dead
            assert refused.headers["retry-after"] == "1"
        finally:
            gate.set()
            waiting.join(60)
        assert answers[0].body == "done"
        assert gateway.ask("GET", "/").status == 200


def test_connections_are_bounded(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap, [part_of()], replace(LIMITS, connections_max=2)) as gateway:
        host, _, port = gateway.address.rpartition(":")
        held = [socket.create_connection((host, int(port)), 60) for _ in range(2)]
        try:
            for each in held:  # so that both are there
                each.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert each.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert refused(gateway.address)
        finally:
            for each in held:
                each.close()


def test_what_fails_says_nothing_of_why(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap, [part_of()], LIMITS) as gateway:
        answered = gateway.ask("GET", "/fail")
        assert answered.status == 500
        assert "secret" not in str(answered.body)


def test_pages_of_other_sites_are_refused(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap, [part_of()], LIMITS) as gateway:
        assert gateway.ask("GET", "/", headers={"Origin": "https://evil.example"}).status == 403
        assert gateway.ask("GET", "/", headers={"Host": "evil.example"}).status == 421
        assert gateway.ask("GET", "/", headers={"Origin": gateway.url}).status == 200


def test_a_gateway_that_is_closed_answers_what_it_was_asked(broker: Broker) -> None:
    gate = threading.Event()
    answers: list[Any] = []
    gateway = HttpGateway(broker.bootstrap, [part_of(gate)], LIMITS)
    with gateway:
        waiting = threading.Thread(target=lambda: answers.append(gateway.ask("GET", "/wait")))
        waiting.start()
        ending = threading.Thread(target=gateway.close)
        while gateway.ask("GET", "/healthz").status != 200:
            pass
        ending.start()
        gate.set()
        waiting.join(60)
        ending.join(60)
    assert answers[0].body == "done"


def test_what_can_not_be_ended_is_503_when_the_gateway_is_closed(broker: Broker) -> None:
    begun, answers = threading.Event(), []

    async def wait(_: Request) -> Response:
        begun.set()
        await asyncio.sleep(3_600)
        return JSONResponse("never")

    part: Any = SimpleNamespace(routes=lambda gateway: [Route("/wait", wait)])
    with HttpGateway(broker.bootstrap, [part], replace(LIMITS, stop_s=1.0)) as gateway:
        waiting = threading.Thread(target=lambda: answers.append(gateway.ask("GET", "/wait")))
        waiting.start()
        assert begun.wait(60)
        gateway.close()
        waiting.join(60)
    assert answers[0].status == 503
    assert "is being stopped" in answers[0].body["detail"]


def test_a_client_that_goes_in_the_middle_of_a_body_leaves_no_line_in_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def count(request: Request) -> Response:
        begun.set()
        try:
            return JSONResponse(len(await request.body()))
        finally:
            ended.set()

    part: Any = SimpleNamespace(routes=lambda gateway: [Route("/count", count, methods=["POST"])])
    with HttpGateway(broker.bootstrap, [part], LIMITS) as gateway:
        host, _, port = gateway.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(b"POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
            assert begun.wait(60)
        assert ended.wait(60)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_paths_and_methods_that_are_not_there_say_which_are(broker: Broker) -> None:
    table = [Route("/a", lambda _: JSONResponse(1), methods=[method]) for method in ("POST", "DELETE")]
    part: Any = SimpleNamespace(routes=lambda gateway: table)
    with HttpGateway(broker.bootstrap, [part], LIMITS) as gateway:
        assert "/v3/openapi.json" in gateway.ask("GET", "/b").body["detail"]
        refused = gateway.ask("PUT", "/a")
        assert (refused.status, refused.headers["allow"]) == (405, "DELETE, POST")
        assert "DELETE, POST" in refused.body["detail"]
        assert gateway.ask("POST", "/a%00").status == 400


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def test_users_are_asked_for_and_the_node_knows_them() -> None:
    with (
        Broker(users={"alice": "secret", "gateway": "gateway-secret"}) as broker,
        HttpGateway(broker.bootstrap_of("gateway"), PARTS, has_users=True) as gateway,
    ):
        refused = gateway.ask("GET", "/subjects")
        assert (refused.status, refused.body["error_code"]) == (401, 40101)
        assert refused.headers["www-authenticate"].startswith("Basic ")
        for wrong in (basic("alice", "wrong"), basic("nobody", "x"), {"Authorization": "Basic !"}):
            assert gateway.ask("GET", "/subjects", headers=wrong).status == 401
        assert gateway.ask("GET", "/healthz").status == 200
        right = basic("alice", "secret")
        registered = gateway.ask("POST", "/subjects/s/versions", {"schema": '"int"'}, right)
        assert registered.body["id"] == 1
        assert gateway.ask("GET", "/subjects", headers=right).body == ["s"]


def test_a_password_goes_through_a_gateway_that_encrypts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.node()
    with (
        Broker(users={"alice": "secret", "gateway": "gateway-secret"}) as broker,
        HttpGateway(
            broker.bootstrap_of("gateway"), PARTS, has_users=True, tls=(str(pair.certificate), str(pair.key))
        ) as gateway,
    ):
        url = f"https://{gateway.address}"
        registry = SchemaRegistry(url, username="alice", password="secret", ca_location=str(authority.ca))
        assert registry.register("s", Schema('"int"')) == 1
        with pytest.raises(SchemaRegistryError, match="does not know this user"):
            SchemaRegistry(url, username="alice", password="x", ca_location=str(authority.ca)).subjects()


def test_acls_of_the_topic_say_who_registers() -> None:
    users = {"alice": "secret", "gateway": "gateway-secret"}
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with (
        Broker(users=users, authorizer_class_name=authorizer, super_users="User:gateway") as broker,
        HttpGateway(broker.bootstrap_of("gateway"), PARTS, has_users=True) as gateway,
    ):
        alice, own = basic("alice", "secret"), basic("gateway", "gateway-secret")
        refused = gateway.ask("POST", "/subjects/s/versions", {"schema": '"int"'}, alice)
        assert refused.status == 403
        assert gateway.ask("POST", "/subjects/s/versions", {"schema": '"int"'}, own).body["id"] == 1
        assert gateway.ask("GET", "/subjects", headers=alice).body == ["s"]


def test_clients_of_users_are_bounded() -> None:
    async def count() -> int:
        from semel.web.gateway import Caller

        gateway = Gateway("localhost:1", replace(LIMITS, users_max=3), asks_for_passwords=True)
        for number in range(10):
            gateway.clients(Caller(f"user-{number}", "x")).admin()
        found = len(gateway._of_users)
        await gateway.close()
        return found

    assert asyncio.run(count()) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.0.0.0:80", "everybody who can connect"),
        ("log.example.com:80", "everybody who can connect"),
        ("sasl://0.0.0.0:80", "plain text"),
        ("tls://127.0.0.1:80", "--certificate"),
        ("80", "HOST:PORT"),
        ("http://127.0.0.1:80", "HOST:PORT"),
        ("127.0.0.1:99999", "HOST:PORT"),
    ],
)
def test_where_it_does_not_listen(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        listen_of(text)


def test_where_it_listens() -> None:
    assert listen_of("[::1]:80").host == "::1"
    assert listen_of("0.0.0.0:80", is_insecure=True).port == 80
    assert listen_of("tls+sasl://0.0.0.0:80", certificate="a", key="b").has_users
