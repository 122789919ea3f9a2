"""`semel schema`, against a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_gateway import HttpGateway
from typer.testing import CliRunner

from semel.cli.http import app as http_app
from semel.cli.schema import app
from semel.testing import Broker

V1 = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker, HttpGateway(broker.bootstrap) as gateway:
        yield gateway.url


def run(url: str, *arguments: str, code: int = 0, stdin: str = "") -> str:
    result = CliRunner().invoke(app, [*arguments, "--registry", url], input=stdin)
    assert result.exit_code == code, result.output
    return result.output


def test_a_schema_from_its_file_to_its_end(url: str, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(V1)
    assert "no schemas" in run(url, "list")
    assert run(url, "register", "orders-value", str(file)) == "orders-value version 1 has the id 1\n"
    assert json.loads(run(url, "register", "orders-value", "-", "--type", "avro", "--json", stdin=V1))["id"] == 1
    assert "orders-value" in run(url, "list")
    assert run(url, "get", "orders-value") == V1 + "\n"
    assert json.loads(run(url, "get", "orders-value", "--json"))["version"] == 1
    assert run(url, "check", "orders-value", str(file)) == "it is compatible with orders-value (BACKWARD)\n"
    file.write_text(V1.replace("long", "string"))
    assert "TYPE_MISMATCH" in run(url, "check", "orders-value", str(file), code=1)
    assert "incompatible" in run(url, "register", "orders-value", str(file), code=1)
    assert "Delete the subject" in run(url, "delete", "orders-value", code=1, stdin="n\n")
    assert run(url, "delete", "orders-value", "--yes") == "orders-value is deleted: 1 version\n"
    assert run(url, "delete", "orders-value", "--permanent", "--yes") == "orders-value is deleted: 1 version\n"
    assert "not found" in run(url, "get", "orders-value", code=1)


def test_references_and_protobuf(url: str, tmp_path: Path) -> None:
    common, shop = tmp_path / "common.proto", tmp_path / "shop.proto"
    common.write_text('syntax = "proto3"; message C { }')
    shop.write_text('syntax = "proto3"; import "common.proto"; message S { C c = 1; }')
    run(url, "register", "common", str(common))
    run(url, "register", "shop", str(shop), "--reference", "common.proto=common:1")
    assert json.loads(run(url, "get", "shop", "--json"))["references"][0]["subject"] == "common"
    assert "NAME=SUBJECT:VERSION" in run(url, "register", "x", str(shop), "--reference", "common", code=2)


def test_a_wrong_command_line(url: str, tmp_path: Path) -> None:
    other = tmp_path / "order.txt"
    other.write_text(V1)
    assert "--type" in run(url, "register", "x", str(other), code=2)
    assert "can't be read" in run(url, "register", "x", str(tmp_path / "no.avsc"), code=2)
    assert "go together" in run(url, "list", "--user", "me", code=2)


def test_a_gateway_does_not_serve_strangers() -> None:
    result = CliRunner().invoke(http_app, ["--listen", "0.0.0.0:0"])
    assert result.exit_code == 2
    assert "--insecure" in result.output
