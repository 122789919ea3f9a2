"""Runs a pipeline for a bounded time while its processes are killed and its answers lost; records what clients saw."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from committed_values import decided
from history import History, Outcome, Read, Send, Transaction, load_transactions
from kafka_pipeline_ends import KafkaFeeder, KafkaReader
from lossy_proxy import LossyProxy

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.api.topics import LATEST_TIMESTAMP

SUPPORT = Path(__file__).parent
SOURCE, TARGET, GROUP = "source", "target", "pipeline"
PARTITIONS = 3
CLIENTS = (semel.Producer, semel.Consumer)
"""Imported before threads use them: pytest parses what is imported, and Python 3.11's parser fails in two at once."""


class Clients(Enum):
    """What the pipeline is written with: its worker's script."""

    SEMEL = "pipeline_worker.py"
    CONFLUENT = "kafka_pipeline_worker.py"


@dataclass(frozen=True, slots=True)
class Chaos:
    """What happens during a run. Weights say how often each fault is drawn; `loss` is a probability for each answer."""

    seed: int
    duration_s: float
    kill_instance: int = 6
    kill_node: int = 3
    freeze_instance: int = 2
    loss: float = 0.003
    abort_rate: float = 0.1
    instances: int = 3
    static_members: bool = False
    fault: str | None = None
    clients: Clients = Clients.SEMEL
    settle_s: float = 90.0
    source: str = SOURCE
    target: str = TARGET
    group: str = GROUP


@dataclass(slots=True)
class Report:
    """What was done to the pipeline, beside its history."""

    history: History
    faults: dict[str, int] = field(default_factory=dict)
    settled: bool = False
    node_log: str = ""


class Feeder(threading.Thread):
    """Sends numbered values to the source, through kills and lost answers, and records what was acknowledged."""

    def __init__(
        self,
        bootstrap: str,
        topic: str = SOURCE,
        every_s: float = 0.002,
        may_send: Callable[[int], bool] = lambda sent: True,
    ) -> None:
        """`may_send` is asked before each value, with the count of those that were sent."""
        super().__init__(daemon=True)
        self._may_send = may_send
        self.transactions: list[Transaction] = []
        self._address = bootstrap
        self._topic = topic
        self._every_s = every_s
        self._stopping = threading.Event()
        self._outcomes: dict[int, Outcome] = {}
        self._sends: list[Send] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with semel.Producer(self._address, linger_ms=1, connect_timeout_ms=60_000) as producer:
                while not self._stopping.wait(self._every_s):
                    number = len(self._sends)
                    if not self._may_send(number):
                        continue
                    send = Send(self._topic, number % PARTITIONS, f"s{number}")
                    self._sends.append(send)
                    producer.send(
                        send.topic, send.value.encode(), partition=send.partition, on_delivery=self._delivered(number)
                    )
                producer.flush(60)
        except BaseException as error:
            self.error = error

    @property
    def acknowledged(self) -> int:
        return len(self._outcomes)

    def stop(self) -> None:
        """Send no more."""
        self._stopping.set()

    def finish(self) -> None:
        self.stop()
        self.join(90)
        assert not self.is_alive(), "the feeder's flush did not end"
        if self.error is not None:
            raise self.error
        self.transactions = [
            Transaction("feeder", (send,), self._outcomes.get(number, Outcome.UNKNOWN))
            for number, send in enumerate(self._sends)
        ]

    def _delivered(self, number: int):  # type: ignore[no-untyped-def]
        def record(_: object, error: BaseException | None) -> None:
            if error is None:
                self._outcomes[number] = Outcome.COMMITTED

        return record


class LiveReader(threading.Thread):
    """Reads the target while everything happens, never seeking."""

    def __init__(self, bootstrap: str, topic: str = TARGET) -> None:
        super().__init__(daemon=True)
        self.records: dict[int, list[tuple[int, str]]] = {number: [] for number in range(PARTITIONS)}
        self.error: BaseException | None = None
        self._address = bootstrap
        self._topic = topic
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with semel.Consumer(self._address, connect_timeout_ms=60_000) as reader:
                reader.assign([semel.TopicPartition(self._topic, number) for number in range(PARTITIONS)])
                while not self._stopping.is_set():
                    for record in reader.poll(0.2) or ():
                        self.records[record.partition].append((record.offset, (record.value or b"").decode()))
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Read no more."""
        self._stopping.set()

    def finish(self) -> list[Read]:
        self.stop()
        self.join(30)
        if self.error is not None:
            raise self.error
        return [Read("live", self._topic, number, tuple(records)) for number, records in self.records.items()]


class Workers:
    """The instances of the pipeline, by number; each may have frozen predecessors.

    bootstrap: where those that are started from now on find the cluster
    """

    def __init__(self, chaos: Chaos, bootstrap: str, folder: Path) -> None:
        self._chaos = chaos
        self._history = folder / "history"
        self._history.mkdir(parents=True)
        self._log = (folder / "workers.log").open("ab")
        self.bootstrap = bootstrap
        self._running: list[subprocess.Popen[bytes] | None] = [None] * chaos.instances
        self._frozen: list[tuple[float, subprocess.Popen[bytes]]] = []

    def start_missing(self) -> None:
        for number, process in enumerate(self._running):
            if process is None or process.poll() is not None:
                command = [sys.executable, str(SUPPORT / self._chaos.clients.value), "--bootstrap", self.bootstrap]
                command += ["--instance", str(number), "--history", str(self._history), "--seed", str(self._chaos.seed)]
                command += ["--abort-rate", str(self._chaos.abort_rate), "--partitions", str(PARTITIONS)]
                command += ["--source", self._chaos.source, "--target", self._chaos.target]
                command += ["--group", self._chaos.group]
                if self._chaos.static_members:
                    command.append("--static")
                self._running[number] = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill(self, number: int) -> None:
        process = self._running[number]
        if process is not None:
            process.kill()
            process.wait(20)

    def freeze(self, number: int, seconds: float) -> None:
        process = self._running[number]
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            self._frozen.append((time.monotonic() + seconds, process))
            self._running[number] = None

    def thaw_due(self, *, everything: bool = False) -> None:
        now = time.monotonic()
        for due, process in self._frozen:
            if everything or due <= now:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in [*self._running, *(process for _, process in self._frozen)]:
            if process is not None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                process.wait(20)
        self._log.close()

    def transactions(self) -> list[Transaction]:
        return load_transactions(self._history.glob("*.jsonl"))


def run_chaos(chaos: Chaos, folder: Path) -> Report:
    """Run the pipeline under `chaos`, let it finish without faults, and return what clients saw."""
    draw = random.Random(chaos.seed)
    program: Sequence[str] = ("-P", "-m", "semel.cli")
    if chaos.fault is not None:
        program = (str(SUPPORT / "faulty_node.py"), chaos.fault)
    settings = ["offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4"]
    node = NodeProcess(folder / "data", program=program, settings=settings)
    kafka, grpc = (
        LossyProxy(int(address.rpartition(":")[2]), chaos.seed + number)
        for number, address in enumerate((node.kafka_address, node.bootstrap))
    )
    bootstrap = f"127.0.0.1:{grpc.port}"
    node.add_setting(f"kafka.advertised=127.0.0.1:{kafka.port}")
    node.start()
    kafka_bootstrap = f"127.0.0.1:{kafka.port}"
    foreign = chaos.clients is Clients.CONFLUENT
    workers = Workers(chaos, kafka_bootstrap if foreign else bootstrap, folder)
    report = Report(History())
    try:
        with semel.Admin(node.bootstrap) as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topic(topic, partitions=PARTITIONS)
        feeder: Feeder | KafkaFeeder = Feeder(bootstrap)
        reader: LiveReader | KafkaReader = LiveReader(bootstrap)
        if foreign:
            feeder = KafkaFeeder(kafka_bootstrap, SOURCE, PARTITIONS)
            reader = KafkaReader(kafka_bootstrap, TARGET, PARTITIONS)
        feeder.start()
        reader.start()
        workers.start_missing()
        _await_output(node, workers)
        kafka.loss = grpc.loss = chaos.loss
        _strike(chaos, draw, node, workers, report)
        kafka.loss = grpc.loss = 0.0
        report.faults["answers lost"] = kafka.lost + grpc.lost
        feeder.finish()
        report.settled = _settle(node, workers, chaos.settle_s)
        workers.stop()
        report.history.reads += reader.finish()
        report.history.reads += read_everything(node.bootstrap, must_be_decided=not chaos.fault)
        report.history.transactions = [*feeder.transactions, *workers.transactions()]
        with semel.Admin(node.bootstrap) as admin:
            report.history.source_end_offsets = source_ends(admin)
        return report
    finally:
        workers.stop()
        node.stop()
        kafka.close()
        grpc.close()


def _await_output(node: NodeProcess, workers: Workers) -> None:
    """Wait until the pipeline is at work, which on a busy machine takes longer than many a run is to last."""
    tps = [semel.TopicPartition(TARGET, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + 90
    with semel.Admin(node.bootstrap) as admin:
        while not any(place.offset for place in admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP)).values()):
            assert time.monotonic() < deadline, "the pipeline has written nothing"
            workers.start_missing()
            time.sleep(0.05)


def _strike(chaos: Chaos, draw: random.Random, node: NodeProcess, workers: Workers, report: Report) -> None:
    kinds = ["kill instance"] * chaos.kill_instance + ["kill node"] * chaos.kill_node
    kinds += ["freeze instance"] * chaos.freeze_instance
    end = time.monotonic() + chaos.duration_s
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, draw.uniform(0.3, 1.5)))
        workers.thaw_due()
        workers.start_missing()
        if not node.is_running:
            node.start()  # a planted fault has ended it
        if not kinds:
            continue
        kind = draw.choice(kinds)
        report.faults[kind] = report.faults.get(kind, 0) + 1
        if kind == "kill node":
            node.kill()
            node.start()
        elif kind == "kill instance":
            workers.kill(draw.randrange(chaos.instances))
        else:
            workers.freeze(draw.randrange(chaos.instances), draw.uniform(0.5, 4.0))
    workers.thaw_due(everything=True)
    if not node.is_running:
        node.start()


def _settle(node: NodeProcess, workers: Workers, patience_s: float) -> bool:
    """Wait until the group has worked off the source: liveness, once the faults have ended."""
    deadline = time.monotonic() + patience_s
    with semel.Admin(node.bootstrap) as admin:
        ends = source_ends(admin)
        while time.monotonic() < deadline:
            workers.start_missing()
            if not node.is_running:
                node.start()
            committed = {(tp.topic, tp.partition): place.offset for tp, place in admin.group_offsets(GROUP).items()}
            if all(committed.get(partition, 0) >= end for partition, end in ends.items()):
                return True
            time.sleep(0.2)
    return False


def source_ends(admin: semel.Admin, topic: str = SOURCE) -> dict[tuple[str, int], int]:
    tps = [semel.TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
    return {(tp.topic, tp.partition): place.offset for tp, place in found.items()}


def read_everything(
    bootstrap: str, topics: Sequence[str] = (SOURCE, TARGET), *, must_be_decided: bool = True
) -> list[Read]:
    """Return all that is committed, once nothing more can be: who wrote was ended before.

    must_be_decided: False where a planted fault may have lost a marker, so that a transaction stays open for good
    """
    reads = []
    for topic in topics:
        tps = [semel.TopicPartition(topic, number) for number in range(PARTITIONS)]
        records: dict[int, list[tuple[int, str]]] = {number: [] for number in range(PARTITIONS)}
        if must_be_decided:
            decided(bootstrap, tps)
        with semel.Consumer(bootstrap) as reader:
            reader.assign(tps)
            ends = reader.end_offsets(tps)
            while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
                for record in reader.poll(1.0) or ():
                    records[record.partition].append((record.offset, (record.value or b"").decode()))
        reads += [Read("final", topic, number, tuple(found)) for number, found in records.items()]
    return reads
