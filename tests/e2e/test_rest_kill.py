"""Gateways, workers and the node are killed: a request with a key takes effect once, each input is in one sum (E1)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any

import http_worker
import pytest
from gateway_process import GatewayProcess
from gateway_requests import GatewayRequests, text

import semel
from semel.cli.demo.processes import NodeProcess

PARTITIONS = 2
NUMBERS = 300
KILLS = 7
WITHIN_S = 120.0


@pytest.mark.drawn(1)
@pytest.mark.parametrize("dies", ["written", "committed"])
def test_T13_E5_a_gateway_that_is_killed_amid_a_request_and_the_next_gateway_do_it_once(
    tmp_path: Path, dies: str
) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        body = {"records": [text("a", topic_name="orders"), text("b", topic_name="orders")]}
        with GatewayProcess(node.bootstrap, dies) as dying:
            with pytest.raises((HTTPException, OSError)):
                GatewayRequests(dying.url).post("/records", body, key="k")
            dying.wait_killed()
        with GatewayProcess(node.bootstrap) as next_one:
            gateway = GatewayRequests(next_one.url)
            done = gateway.post("/records", body, key="k")
            assert done.status == 200
            assert ("idempotency-replayed" in done.headers) is (dies == "committed")
            assert gateway.post("/records", body, key="k").body == done.body
            path = f"{gateway.cluster}/topics/orders/partitions/0/records?value_format=STRING"
            records = gateway.get(path).json["data"]
        assert [record["value"]["data"] for record in records] == ["a", "b"]
        assert [record["offset"] for record in records] == [report["offset"] for report in done.json["data"]]
    finally:
        node.stop()


def test_E1_workers_gateways_and_the_node_are_killed_and_each_number_is_in_one_sum(tmp_path: Path) -> None:
    chance = random.Random(11)
    node = NodeProcess(tmp_path / "data")
    node.start()
    with ExitStack() as stack:
        stack.callback(node.stop)
        with semel.Admin(node.bootstrap) as admin:
            for topic in ("numbers", "sums"):
                admin.create_topic(topic, partitions=PARTITIONS)
        with semel.Producer(node.bootstrap) as producer:
            for number in range(NUMBERS):
                producer.send("numbers", str(number), partition=number % PARTITIONS)
        gateways = [stack.enter_context(GatewayProcess(node.bootstrap)) for _ in range(2)]
        workers = [start(stack, [gateway.url for gateway in gateways]) for _ in range(3)]
        for kill in range(KILLS):
            reach(node.bootstrap, (kill + 1) * NUMBERS // (KILLS + 2))
            if kill == 3:
                node.kill()
                node.start()
            elif kill % 3 == 1:
                gateways.pop(0).kill()
                gateways.append(stack.enter_context(GatewayProcess(node.bootstrap)))
                for worker in workers:
                    worker.kill()  # they know the old gateway alone
                workers = [start(stack, [gateway.url for gateway in gateways]) for _ in workers]
            else:
                workers.pop(chance.randrange(len(workers))).kill()
                workers.append(start(stack, [gateway.url for gateway in gateways]))
        reach(node.bootstrap, NUMBERS)
        for worker in workers:
            assert worker.poll() is None, "a worker failed"
        sums = read_sums(node.bootstrap)
    assert sorted(number for one in sums for number in one["of"]) == list(range(NUMBERS))
    assert all(one["sum"] == sum(one["of"]) for one in sums)


def start(stack: ExitStack, urls: Sequence[str]) -> subprocess.Popen[bytes]:
    arguments = ["adds", "numbers", "sums", str(PARTITIONS), *urls]
    worker = subprocess.Popen([sys.executable, "-P", http_worker.__file__, *arguments])

    def end() -> None:
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    stack.callback(end)
    return worker


def reach(bootstrap: str, count: int) -> None:
    """Wait until so many numbers are in sums."""
    deadline = time.monotonic() + WITHIN_S
    while sum(len(one["of"]) for one in read_sums(bootstrap)) < count:
        assert time.monotonic() < deadline, f"waited in vain for {count} numbers"
        time.sleep(0.05)


def read_sums(bootstrap: str) -> list[dict[str, Any]]:
    tps = [semel.TopicPartition("sums", number) for number in range(PARTITIONS)]
    sums: list[dict[str, Any]] = []
    with semel.Consumer(bootstrap) as reader:
        reader.assign(tps)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            sums += [json.loads(record.value) for record in reader.poll(1.0) or ()]
    return sums
