"""A node and its clients take chance and time from where a simulator can put its own (docs/simulation.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
NODE = ("protocol", "runtime", "txn_coordinator", "group_coordinator", "broker")
CLIENTS = ("sdk/transport", "sdk/producer", "sdk/consumer", "sdk/admin", "sdk/shared", "sdk/pipeline")

CHANCE = frozenset({"random", "secrets", "uuid"})
SIMULATED = "it is the simulation"
SEEDED = "a generator whose seed is drawn from protocol/randomness.py"
DRAWING_ALLOWED = {
    "protocol/randomness.py": {"random.SystemRandom": "the one place", "random.Random": "a type"},
    "runtime/simulated_disk.py": {"random.Random": SIMULATED},
    "runtime/simulated_storage.py": {"random.Random": SIMULATED},
    "sdk/consumer/fetcher.py": {"random.Random": SEEDED},
}

CLOCKS = frozenset({"time", "datetime"})
TIME_ALLOWED = {
    "runtime/encrypted.py": {"time.time": "a certificate is valid by the calendar, as OpenSSL reads it"},
    "broker/listeners/tls.py": {"time.monotonic": "when to look at a file again, on gRPC's threads, too"},
    "broker/users/users.py": {"time.monotonic": "when to look at a file again"},
    "broker/users/token_keys.py": {"time.monotonic": "when to look at a file again, and to ask again, in a thread"},
    "broker/users/tokens.py": {"time.time": "a token is valid by the calendar, as its library reads it"},
    "broker/log/producer_snapshot.py": {"time.sleep": "a thread beside the event loop lets go of the interpreter"},
    "broker/log/producers_before.py": {"time.sleep": "a thread beside the event loop lets go of the interpreter"},
    "runtime/clock.py": {"time.time_ns": "the clock", "time.monotonic": "the clock"},
    "runtime/bounded_http.py": {"time.monotonic": "how long a server takes, which is asked in a thread"},
    "runtime/turns.py": {"time.perf_counter": "turns are measured by the CPU's time, or by `measure_by`"},
    "runtime/flood_guard.py": {"time.monotonic": "how many lines a log may have; nothing else depends on it"},
}
MEASURING = ("broker/telemetry/", "broker/inspection/", "runtime/telemetry/")
"""What tells an operator the time, or what something took, and decides nothing by it."""


def sources(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from (
            path for path in sorted((ROOT / folder).rglob("*.py")) if not path.name.endswith(("_pb2.py", "_grpc.py"))
        )


def uses(path: Path, modules: frozenset[str]) -> set[str]:
    """Return what a file uses of modules, whatever it calls them: "random.Random". Types in annotations count, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            found.add(f"{names[node.value.id]}.{node.attr}")
    return found


def test_nothing_draws_but_where_a_simulator_can_give_the_seed() -> None:
    found = {}
    for path in sources(NODE + CLIENTS):
        drawn = uses(path, CHANCE) - {"uuid.UUID"}
        if drawn:
            found[str(path.relative_to(ROOT))] = drawn
    assert found == {path: set(why) for path, why in DRAWING_ALLOWED.items()}, "use protocol/randomness.py"


def test_no_pause_between_attempts_is_drawn_by_tenacity() -> None:
    """It draws from a generator of its own, so a world would not be the same twice."""
    found = {
        str(path.relative_to(ROOT))
        for path in sources(NODE + CLIENTS)
        if re.search(r"\bwait_(random|exponential)", path.read_text(encoding="utf-8"))
    }
    assert found == set(), "draw the pause from protocol/randomness.py"


def test_a_node_reads_the_time_from_its_clock() -> None:
    found = {}
    for path in sources(NODE):
        name = str(path.relative_to(ROOT))
        read = {one for one in uses(path, CLOCKS) if one.startswith("time.") or one == "datetime.now"}
        if read and not name.startswith(MEASURING):
            found[name] = read
    assert found == {path: set(why) for path, why in TIME_ALLOWED.items()}, "take it from the node's clock"
