"""The examples of docs/how-to/serialization.md, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from semel.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serialization.md"
ORDER = {"id": 7, "amount": 30.5}


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [text for text in blocks if containing in text]
    assert isinstance(found, str)
    return found


@pytest.fixture
def broker() -> Any:
    with Broker() as node:
        node.create_topic("orders", partitions=1)
        yield node


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b'{"id":7,"amount":30.5}'),
        ("avro", b"\x0e" + bytes(5) + b"\x80>@"),
        ("protobuf", b"\x08\x07\x11" + bytes(5) + b"\x80>@"),
        ("thrift", b"\x0a\x00\x01" + bytes(7) + b"\x07\x04\x00\x02@>\x80" + bytes(5) + b"\x00"),
    ],
)
def test_what_is_sent_comes_back(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if name == "protobuf":
        Path("order.proto").write_text(block("proto", "order.proto"))
        words = block("console", "grpc_tools.protoc").splitlines()[1].removeprefix("$ python ").split()
        subprocess.run([sys.executable, *words], check=True)
    Path("order.thrift").write_text(block("text", "order.thrift"))
    names: dict[str, Any] = {}
    exec(block("python", f"def send_{name}("), names)
    names[f"send_{name}"](broker.bootstrap)
    (found,) = names[f"read_{name}"](broker.bootstrap)
    assert (found if isinstance(found, dict) else {"id": found.id, "amount": found.amount}) == ORDER
    assert [record.value for record in broker.records("orders", at_least=1)] == [data]
