"""Counts instructions: what a request, a commit or a record costs, whatever else the machine does meanwhile.

    make instructions                                        compare with bench/instructions.toml, about a minute
    .venv/bin/python -P bench/instructions.py --record       write them down, after a change that is meant
    .venv/bin/python -P bench/instructions.py produce commit some alone

Callgrind (Debian: `apt install valgrind`) runs the node, then a client, and counts what they execute in user space: no
system calls, no waiting. So it is the same on a busy machine, and sees a per cent where a clock sees noise. It is given
as a multiple of a round of plain Python that is counted with it, because interpreters are built differently.
The best of several turns counts: a node's own duties fall into some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parent))  # last: tests import this, and have modules of the same names

from counted.callgrind import Callgrind, read_counts

RECORDED: Final = Path(__file__).resolve().parent / "instructions.toml"
TOLERANCE: Final = 0.10
"""By so much a figure may grow before it counts as slower."""
TOLERANCE_OF_CLIENTS: Final = 0.25
"""The same for the SDK's clients, whose threads wait for each other more often or less."""
TURNS: Final = 5
TURNS_OF_CLIENTS: Final = 12
REFERENCE: Final = "reference"
_ROUNDS: Final = 2_000
TIMEOUT_S: Final = 600
NAMES: Final[Mapping[str, str]] = {
    "produce": "Produce of one 100 B record, acks=1",
    "fetch-1mb": "Fetch of 1 MB",
    "commit": "a transaction of one record with its commit, KIP-890",
    "heartbeat": "ConsumerGroupHeartbeat with nothing new",
    "sdk-send": "one record through `Producer.send`, of 2,000",
    "sdk-poll": "one record from a `Consumer`, of 20,000",
}
"""What is counted. With the first four it is the node, and a client that does next to nothing; else the client."""
OF_CLIENTS: Final = frozenset({"sdk-send", "sdk-poll"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to count: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--record", action="store_true", help="write the figures to bench/instructions.toml")
    parser.add_argument("--inside", choices=("node", "client"), help=argparse.SUPPRESS)
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - NAMES.keys()):
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    names = frozenset(options.names or NAMES)
    if options.inside == "node":
        asyncio.run(_count_node(names, options.at))
        return 0
    if options.inside == "client":
        _count_client(names, options.at)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not installed; on Debian: apt install valgrind", file=sys.stderr)
        return 2
    found = _count(names)
    return _record(found) if options.record else _compare(found)


# --- Inside of valgrind -----------------------------------------------------------------------------------------------


def _reference() -> int:
    """Some plain Python: calls, dictionaries, numbers, bytes. It must stay as it is."""
    table: dict[int, bytes] = {}
    total = 0
    for number in range(_ROUNDS):
        key = number * 7 % 97
        table[key] = table.get(key, b"")[-20:] + number.to_bytes(4, "big")
        total += len(table[key]) + sum((number, key))
    return total


def _count_reference(callgrind: Callgrind) -> None:
    _reference()
    for _ in range(2):
        callgrind.start()
        _reference()
        callgrind.stop(f"{REFERENCE} {_ROUNDS}")


async def _count_node(names: frozenset[str], folder: str) -> None:
    from counted import requests

    from semel.broker.node import Node

    callgrind = _inside()
    node = await Node.start(requests.node_config(folder))
    assert node.kafka_address is not None
    connection = requests.Connection(node.kafka_address.port)
    for name, (step, count) in (await requests.steps(node, connection)).items():
        if name not in names:
            continue
        for turn in range(TURNS + 1):
            gc.collect()
            gc.disable()
            if turn:  # the first warms up
                callgrind.start()
            for _ in range(count):
                await step()
            if turn:
                callgrind.stop(f"{name} {count}")
            gc.enable()
    connection.close()
    await node.stop(grace_ms=100)


def _count_client(names: frozenset[str], bootstrap: str) -> None:
    from counted import clients

    callgrind = _inside()

    def counted(name: str, count: int, call: Callable[[], None]) -> None:
        for turn in range(TURNS_OF_CLIENTS + 1 if name in names else 1):
            gc.collect()
            gc.disable()
            if turn:
                callgrind.start()
            call()
            if turn:
                callgrind.stop(f"{name} {count}")
            gc.enable()

    clients.steps(bootstrap, counted)


def _inside() -> Callgrind:
    callgrind = Callgrind()
    if not callgrind.is_running:
        sys.exit("this is for valgrind to run")
    _count_reference(callgrind)
    return callgrind


# --- Outside ----------------------------------------------------------------------------------------------------------


def _count(names: frozenset[str]) -> dict[str, float]:
    """Return how many times the instructions of one round of the reference each of them takes, by name."""
    from harness import running_node

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="semel-instructions-") as folder:
        if names - OF_CLIENTS:
            found |= _run(names - OF_CLIENTS, "node", f"{folder}/data", Path(folder) / "node.out")
        if names & OF_CLIENTS:
            with running_node({"durability": "os"}) as node:
                found |= _run(names & OF_CLIENTS, "client", node.grpc, Path(folder) / "client.out")
    return {name: found[name] for name in NAMES if name in found}


def _run(names: frozenset[str], inside: str, at: str, out_file: Path) -> dict[str, float]:
    command = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out_file}", "--quiet",
        sys.executable, "-P", __file__, "--inside", inside, "--at", at, *sorted(names),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        sys.exit(f"valgrind ended with {done.returncode}:\n{done.stdout[-4_000:]}")
    counts: dict[str, float] = {}
    for name, totals in read_counts(out_file).items():
        what, _, times = name.partition(" ")
        counts[what] = min(totals) / int(times)
    reference = counts.pop(REFERENCE)
    for what, count in counts.items():
        print(f"{what}: {count:,.0f} instructions", flush=True)
    return {what: count / reference for what, count in counts.items()}


def _record(found: Mapping[str, float]) -> int:
    recorded = {**_recorded(), **{name: round(ratio, 4) for name, ratio in found.items()}}
    lines = [
        "# What bench/instructions.py has counted, as multiples of a piece of plain Python's instructions.",
        f"# Recorded with CPython {platform.python_version()}. Change it by `bench/instructions.py --record` alone.",
        "",
        *(f"{name} = {recorded[name]}" for name in NAMES if name in recorded),
    ]
    RECORDED.write_text("\n".join(lines) + "\n")
    print(f"written to {RECORDED}")
    return 0


def _recorded() -> dict[str, float]:
    if not RECORDED.exists():
        return {}
    return {name: float(ratio) for name, ratio in tomllib.loads(RECORDED.read_text()).items()}


def _compare(found: Mapping[str, float]) -> int:
    recorded = _recorded()
    is_slower = False
    print(f"\n{'':<10} {'now':>9} {'recorded':>9} {'change':>8}  (1 is a round of plain Python)")
    for name, ratio in found.items():
        before = recorded.get(name)
        if before is None:
            print(f"{name:<10} {ratio:>9.3f} {'-':>9} {'new':>8}  {NAMES[name]}: record it with --record")
            is_slower = True
            continue
        change, allowed = ratio / before - 1, TOLERANCE_OF_CLIENTS if name in OF_CLIENTS else TOLERANCE
        word = "SLOWER" if change > allowed else "faster" if change < -allowed else ""
        is_slower |= change > allowed
        print(f"{name:<10} {ratio:>9.3f} {before:>9.3f} {change:>+8.1%}  {NAMES[name]} {word}")
    if is_slower:
        print("\nSLOWER: find out why, or write it down with --record and say in the commit what it is for.")
    return int(is_slower)


if __name__ == "__main__":
    sys.exit(main())
