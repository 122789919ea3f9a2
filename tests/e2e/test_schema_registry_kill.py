"""Gateways that register at once, and some that are killed meanwhile: each schema has one id, and no answer is lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from http_gateway import HttpGateway, ask

from semel.testing import Broker

WRITERS, SCHEMAS, KILLS = 3, 12, 3


def schema(number: int) -> str:
    return json.dumps({"type": "record", "name": f"R{number}", "fields": []})


@contextmanager
def gateway_process(bootstrap: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a gateway's process and its address, once it can be used."""
    command = [sys.executable, "-P", "-m", "semel.cli", "http", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().removeprefix("ready: http ").strip()
        finally:
            process.kill()


def check_log(broker: Broker) -> dict[str, set[int]]:
    """Return the ids of each subject, from the topic as the documented format has it; they never collide."""
    texts: dict[int, set[str]] = defaultdict(set)
    versions: dict[tuple[str, int], set[int]] = defaultdict(set)
    ids: dict[str, set[int]] = defaultdict(set)
    for record in broker.records("_schemas"):
        key = json.loads(record.key or b"{}")
        if key["keytype"] != "SCHEMA":
            continue
        value = json.loads(record.value or b"{}")
        assert (key["subject"], key["version"]) == (value["subject"], value["version"])
        texts[value["id"]].add(value["schema"])
        versions[value["subject"], value["version"]].add(value["id"])
        ids[value["subject"]].add(value["id"])
    assert all(len(found) == 1 for found in texts.values()), "an id stands for two schemas"
    assert all(len(found) == 1 for found in versions.values()), "a version was given twice"
    assert sorted(texts) == list(range(1, len(texts) + 1)), "ids have gaps"
    by_subject: dict[str, list[int]] = defaultdict(list)
    for subject, version in versions:
        by_subject[subject].append(version)
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in by_subject.values()), "versions have gaps"
    return ids


def test_two_gateways_that_register_at_once_give_each_schema_one_id() -> None:
    with Broker() as broker, HttpGateway(broker.bootstrap) as one, HttpGateway(broker.bootstrap) as other:
        one.ask("PUT", "/config", {"compatibility": "NONE"})

        def register(task: tuple[HttpGateway, int]) -> tuple[int, Any]:
            gateway, number = task
            answered = gateway.ask("POST", "/subjects/shared/versions", {"schema": schema(number)})
            return number, answered.body.get("id", answered.body)

        tasks = [(gateway, number) for number in range(SCHEMAS) for gateway in (one, other)]
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(register, tasks))
        ids: dict[int, set[int]] = defaultdict(set)
        for number, schema_id in answers:
            ids[number].add(schema_id)
        assert all(len(found) == 1 for found in ids.values()), "two answers to the same question"
        assert {schema_id for found in ids.values() for schema_id in found} == set(range(1, SCHEMAS + 1))
        assert check_log(broker) == {"shared": set(range(1, SCHEMAS + 1))}
        for gateway in (one, other):
            assert gateway.ask("GET", "/subjects/shared/versions").body == list(range(1, SCHEMAS + 1))


def test_a_gateway_that_is_killed_loses_no_answer_and_registers_nothing_twice() -> None:
    """Clients ask again, as clients do. What was answered once stays so, whichever gateway answers."""
    with Broker() as broker:
        addresses: list[str] = []
        changed = threading.Condition()
        answers: dict[int, set[int]] = defaultdict(set)
        ended = threading.Event()
        numbers = itertools.count()
        answered = threading.Semaphore(0)

        def write() -> None:
            while not ended.is_set():
                number = next(numbers)
                while not ended.is_set():
                    with changed:
                        changed.wait_for(lambda: addresses or ended.is_set())
                        address = addresses[0] if addresses else ""
                    try:
                        found = ask(address, "POST", f"/subjects/s{number % 2}/versions", {"schema": schema(number)})
                    except (OSError, HTTPException):
                        continue
                    if found.status == 200:
                        answers[number].add(found.body["id"])
                        answered.release()
                        break
                    assert found.status == 503, found.body

        with HttpGateway(broker.bootstrap) as lasting:
            lasting.ask("PUT", "/config", {"compatibility": "NONE"})
            writers = [threading.Thread(target=write) for _ in range(WRITERS)]
            for each in writers:
                each.start()
            try:
                for _ in range(KILLS):
                    with gateway_process(broker.bootstrap) as (process, address):
                        with changed:
                            addresses[:] = [address]
                            changed.notify_all()
                        for _ in range(4):
                            assert answered.acquire(timeout=60)
                        with changed:
                            addresses.clear()
                        os.kill(process.pid, signal.SIGKILL)
            finally:
                with changed:
                    addresses[:] = [lasting.address]
                    ended.set()
                    changed.notify_all()
                for each in writers:
                    each.join(60)
            for number, ids in dict(answers).items():
                again = lasting.ask("POST", f"/subjects/s{number % 2}/versions", {"schema": schema(number)})
                assert ids == {again.body["id"]}, "a repeated request got another id"
            assert len(answers) >= KILLS * 4
            assert {schema_id for ids in answers.values() for schema_id in ids} <= set().union(
                *check_log(broker).values()
            )


def test_a_gateway_ends_by_a_signal() -> None:
    with Broker() as broker, gateway_process(broker.bootstrap) as (process, address):
        assert ask(address, "GET", "/subjects").body == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_gateway_of_a_node_ends_with_it_also_where_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--data-dir", str(tmp_path / "data")]
    ports = ["--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            address = words[words.index("http") + 1]
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), 60) as connection:
                connection.sendall(b"GET /subjects HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
                process.kill()
                while connection.recv(1 << 16):
                    pass  # until the gateway has ended, which closes the connection
        finally:
            process.kill()


def test_a_node_stops_while_its_gateway_still_looks_for_the_one_it_was_told_to_use(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--data-dir", str(tmp_path / "data")]
    ports = ["--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    environment = {**os.environ, "SEMEL_BOOTSTRAP": "127.0.0.1:1"}
    with subprocess.Popen(
        [*command, *ports], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert any("still trying" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            assert "stopped" in process.stderr.read()  # to its end: the gateway, which writes to it, has ended too
            assert (process.wait(60), process.stdout.read()) == (0, "")
        finally:
            process.kill()
