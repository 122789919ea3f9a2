"""How fast the test kit's broker is: a cold process, and what tests wait for again and again.

.venv/bin/python -P bench/testkit.py [--rounds 30]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

COLD = """
import time
begin = time.perf_counter()
from semel.testing import Broker
imported = time.perf_counter()
broker = Broker()
broker.start()
print((imported - begin) * 1000, (time.perf_counter() - imported) * 1000)
broker.close()
"""

T = TypeVar("T")


def cold(times: dict[str, list[float]], rounds: int) -> None:
    """Start a process, import, start the first broker; with compiled bytecode, as an installed package has it."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(rounds + 1):
            output = subprocess.run(
                [sys.executable, "-P", "-c", COLD], env=environment, check=True, capture_output=True, text=True
            ).stdout
            if number:  # the first one compiles
                imported, started = map(float, output.split())
                times["import, once in a process"].append(imported)
                times["first start"].append(started)


def warm(times: dict[str, list[float]], rounds: int) -> None:
    import semel
    from semel.testing import Broker

    def timed(what: str, call: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result = call()
        times[what].append((time.perf_counter() - begin) * 1000)
        return result

    for _ in range(rounds):
        broker = Broker()
        timed("start", broker.start)
        topic = timed("create_topic()", broker.create_topic)
        with semel.Producer(broker.bootstrap, transactional_id="bench") as producer:

            def transaction(producer: semel.Producer = producer, topic: str = topic) -> None:
                with producer.transaction() as txn:
                    txn.send(topic, b"value")

            transaction()
            timed("a transaction with one record", transaction)
        timed("restart()", broker.restart)
        timed("reset()", broker.reset)
        timed("close()", broker.close)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = defaultdict(list)
    warm(times, rounds)
    cold(times, max(3, rounds // 3))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    print("| what | median ms | 90 % ms |\n|---|---:|---:|")
    for what, found in times.items():
        print(f"| {what} | {statistics.median(found):.1f} | {sorted(found)[int(len(found) * 0.9)]:.1f} |")


if __name__ == "__main__":
    main()
