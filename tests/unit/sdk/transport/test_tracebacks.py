"""What a user sees of an error: the program's own frames, and at most two of Semel's. Real programs, in processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from semel.sdk.transport.border import VARIABLE
from semel.testing import Broker

SYNC = """\
import semel, sys, traceback

{mains}
for name in sys.argv[2:]:
    print(f"--- {name}", file=sys.stderr)
    try:
        globals()[name](sys.argv[1])
    except Exception:
        traceback.print_exc()
"""
ASYNCIO = SYNC.replace("import semel", "import asyncio, semel", 1).replace(
    "globals()[name](sys.argv[1])", "asyncio.run(globals()[name](sys.argv[1]))"
)
QUICK = "connect_timeout_ms=200"

ERRORS = {
    # what a node answers
    "send to no topic": ("{with} {aio}Producer(address) as p: {await} p.send('nosuch', b'x')", "there is no topic"),
    "admin": ("{with} {aio}Admin(address) as a: {await} a.topic('nosuch')", "there is no topic"),
    "admin again": ("{with} {aio}Admin(address) as a: {await} a.create_topic('orders')", "already exists"),
    "poll": ("{with} {aio}Consumer(address, group='g', topics=['nosuch']) as c: {await} c.poll()", "there is no topic"),
    "iterate": (
        "{with} {aio}Consumer(address, group='g', topics=['nosuch']) as c:\n        {for} _ in c: pass",
        "there is no topic",
    ),
    "batches": (
        "{with} {aio}Consumer(address, group='g', topics=['nosuch']) as c:\n        {for} _ in c.batches(): pass",
        "there is no topic",
    ),
    "delivery": (
        "{with} {aio}Producer(address) as p:\n        d = {await} p.send('small', b'x' * 5000)\n        {await_result}",
        "MESSAGE_TOO_LARGE",
    ),
    "flush": (
        "p = {aio}Producer(address)\n    {await} p.send('small', b'x' * 5000)\n    {await} p.flush()",
        "1 record sent since the last flush failed",
    ),
    "in a block": (
        "{with} {aio}Producer(address, transactional_id='t') as p:\n"
        "        {with} p.transaction() as txn:\n            {await} txn.send('nosuch', b'x')",
        "there is no topic",
    ),
    "at a block's end": (
        "{with} {aio}Producer(address, transactional_id='u') as p:\n"
        "        {with} p.transaction() as txn:\n            {await} txn.send('small', b'x' * 5000)",
        "MESSAGE_TOO_LARGE",
    ),
    "shared": (
        "s = {await} {aio}SharedTransaction.open(address, 'k', token='1', sequence=2)\n"
        "    {await} s.commit([])\n"
        "    {await} {aio}SharedTransaction.open(address, 'k', token='2', sequence=1)",
        "sequence",
    ),
    # wrong calls
    "wrong option": ("{aio}Consumer(address, nosuch=1)", "has no option 'nosuch'"),
    "wrong value": ("{aio}Producer(address, compression='lz5')", "can't be 'lz5'"),
    "wrong argument": ("{with} {aio}Consumer(address, group='g') as c: c.subscribe('orders')", "list of names"),
    "wrong record": ("{with} {aio}Producer(address) as p: {await} p.send('orders', 5)", "value"),
    "wrong topic": ("{with} {aio}Producer(address) as p: {await} p.send(5, b'x')", "by its name"),
    "send to no partition": (
        "{with} {aio}Producer(address) as p: {await} p.send('orders', b'x', partition=9)",
        "has partitions 0 to 0, not 9",
    ),
    "send too much": ("{with} {aio}Producer(address) as p: {await} p.send('orders', b'x' * 2_000_000)", "send less"),
    "send after close": (
        "p = {aio}Producer(address)\n    {await} p.close()\n    {await} p.send('orders', b'x')",
        "is closed",
    ),
    "send no batch": ("{with} {aio}Producer(address) as p: {await} p.send_batch('orders', 0, b'x')", "record batch"),
    "send outside a transaction": (
        "{with} {aio}Producer(address, transactional_id='v') as p:\n"
        "        {with} p.transaction() as txn: pass\n        {await} txn.send('orders', b'x')",
        "this transaction is not open",
    ),
    "send a wrong record in a transaction": (
        "{with} {aio}Producer(address, transactional_id='w') as p:\n"
        "        {with} p.transaction() as txn: {await} txn.send('orders', 5)",
        "can't be sent",
    ),
    "too soon": ("{with} {aio}Consumer(address, group='g') as c: {await} c.poll()", "reads nothing yet"),
    # no node
    "no node, admin": ("{with} {aio}Admin('127.0.0.1:1', QUICK) as a: {await} a.topics()", "nothing listens"),
    "no node, send": ("{with} {aio}Producer('127.0.0.1:1', QUICK) as p: {await} p.send('t', b'x')", "nothing listens"),
    "no node, begin": (
        "{with} {aio}Producer('127.0.0.1:1', transactional_id='t', QUICK) as p: pass",
        "nothing listens",
    ),
    "no node, poll": (
        "{with} {aio}Consumer('127.0.0.1:1', group='g', topics=['t'], QUICK) as c: {await} c.poll()",
        "nothing listens",
    ),
    "no node, shared": (
        "{await} {aio}SharedTransaction.open('127.0.0.1:1', 'k', token='1', QUICK)",
        "nothing listens",
    ),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker, semel.Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", partitions=1)
        admin.create_topic("small", partitions=1, configs={"max.message.bytes": "1000"})
        yield broker


def main(name: str, code: str, *, in_asyncio: bool) -> str:
    code = code.replace("QUICK", QUICK)
    words = {
        "with": "async with" if in_asyncio else "with",
        "for": "async for" if in_asyncio else "for",
        "await": "await" if in_asyncio else "",
        "aio": "semel.aio." if in_asyncio else "semel.",
        "await_result": "await d" if in_asyncio else "d.result(30)",
    }
    for word, text in words.items():
        code = code.replace("{" + word + "} " if not text else "{" + word + "}", text)
    return f"{'async ' if in_asyncio else ''}def {name}(address):\n    {code}\n\n"


@pytest.fixture(scope="module")
def shown(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], str]:
    """What each error looks like. One process for all of an API: to start one takes seconds."""
    found = {}
    for in_asyncio in (False, True):
        names = {f"main_{number}": what for number, what in enumerate(ERRORS)}
        mains = "".join(main(name, ERRORS[what][0], in_asyncio=in_asyncio) for name, what in names.items())
        source = (ASYNCIO if in_asyncio else SYNC).replace("{mains}", mains)
        text = run(source, [broker.bootstrap, *names], tmp_path_factory.mktemp("programs"), expected=0)
        for part in text.split("--- ")[1:]:
            name, _, trace = part.partition("\n")
            found[names[name], in_asyncio] = trace
    return found


def run(source: str, arguments: list[str], tmp_path: Path, *, expected: int = 1, **environment: str) -> str:
    """Run a program, and return what it leaves on standard error."""
    path = tmp_path / "program.py"
    path.write_text(source)
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-P", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**inherited, **environment},
    )
    assert done.returncode == expected, (done.stdout, done.stderr)
    return done.stderr


def files(shown: str) -> list[str]:
    return re.findall(r'^  File "([^"]+)"', shown, re.MULTILINE)


@pytest.mark.parametrize("in_asyncio", [False, True], ids=["sync", "asyncio"])
@pytest.mark.parametrize("what", ERRORS)
def test_an_error_had_the_frames_of_threads_futures_and_retries(
    what: str, in_asyncio: bool, shown: dict[tuple[str, bool], str]
) -> None:
    text, expected = shown[what, in_asyncio], ERRORS[what][1]
    assert expected in text
    assert text.count("Traceback (most recent call last)") == 1, text
    assert "During handling" not in text
    assert "direct cause" not in text
    frames = files(text)
    last_mine = max(place for place, file in enumerate(frames) if file.endswith("program.py"))
    below = frames[last_mine + 1 :]
    assert len(below) <= (1 if what.startswith("send ") else 2), text
    assert all("semel" in file for file in below), text


NO_NODE = "import semel\nwith semel.Admin('127.0.0.1:1', connect_timeout_ms=200) as admin:\n    admin.topics()\n"


def test_a_variable_keeps_all_frames(tmp_path: Path) -> None:
    full = run(NO_NODE, [], tmp_path, **{VARIABLE: "full"})
    assert "io_thread.py" in full
    short = run(NO_NODE, [], tmp_path)
    assert len(files(short)) == 2, short
    assert len(short.splitlines()) < 9
    assert len(files(full)) > 8


def test_a_bug_keeps_all_frames(broker: Broker, tmp_path: Path) -> None:
    """Whatever is no SemelError: the maintainers need to see where it comes from."""
    source = (
        "import semel, sys\nadmin = semel.Admin(sys.argv[1])\nadmin._core.topics = lambda *_: 1 / 0\nadmin.topics()\n"
    )
    shown = run(source, [broker.bootstrap], tmp_path)
    assert "ZeroDivisionError" in shown
    assert "admin/api.py" in shown


def test_frames_of_the_program_below_ours_are_kept(broker: Broker, tmp_path: Path) -> None:
    """A listener of the program's calls a client, whose error comes out of the poll."""
    source = """\
import semel, sys

class Listener(semel.RebalanceListener):
    def on_assigned(self, partitions):
        save(partitions)

def save(partitions):
    semel.Consumer(group="g").subscribe("orders")

with semel.Consumer(sys.argv[1], group="g", topics=["orders"], listener=Listener()) as c:
    c.poll()
"""
    shown = run(source, [broker.bootstrap], tmp_path)
    assert re.findall(r"in (\w+|<module>)$", shown, re.MULTILINE) == [
        "<module>", "poll", "on_assigned", "save", "subscribe",
    ]  # fmt: skip


def test_what_the_program_was_handling_is_shown(broker: Broker, tmp_path: Path) -> None:
    source = """\
import semel, sys
try:
    {}["mine"]
except KeyError:
    with semel.Admin(sys.argv[1]) as admin:
        admin.topic("nosuch")
"""
    shown = run(source, [broker.bootstrap], tmp_path)
    assert "KeyError: 'mine'" in shown
    assert shown.count("During handling of the above exception") == 1
    assert "tenacity" not in shown
