"""`semel.open`: how a program that has a log ends, forks, is interrupted, and shares its directory with others."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import semel
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError
from semel.sdk.embedded import core

SMALL = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "disk.min.free.bytes": 0,
}
WAIT_S = 60.0


def program(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program that has `SMALL`, and the directory as `folder`."""
    head = f"import sys, os, threading, time, signal, semel\nSMALL = {SMALL!r}\nfolder = sys.argv[1]\n"
    command = [sys.executable, "-P", "-W", "error", "-c", head + textwrap.dedent(text), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    # Where the modules are not compiled, that is said once in each process: it is not what is looked for here.
    done.stderr = re.sub(r"^Semel runs interpreted.*\n", "", done.stderr, flags=re.MULTILINE)
    return done


def values(folder: Path) -> list[bytes | None]:
    found: list[bytes | None] = []
    with semel.open(folder, settings=SMALL) as log, log.consumer() as reader:
        tp = semel.TopicPartition("orders", 0)
        reader.assign([tp])
        end = reader.end_offsets([tp])[tp]
        while (reader.position(tp) or 0) < end:
            found += [record.value for record in reader.poll(WAIT_S) or ()]
    return found


def test_D1_a_log_that_nobody_closed_is_closed_as_the_program_ends(tmp_path: Path) -> None:
    done = program(
        """
        from semel import Producer  # it has its own end, which must not come behind the log's
        log = semel.open(folder, settings=SMALL)
        log.create_topic("orders")
        lingering = log.producer(linger_ms=60_000)
        lingering.send("orders", b"sent")
        left = log.producer(transactional_id="t")
        left.begin_transaction()
        left.send("orders", b"never").result(60)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "was still open when the program ended, and is closed now: use it in a with-block" in line
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert values(tmp_path) == [b"sent"]


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)"])
def test_leaving_the_program_in_the_block_closes_it(tmp_path: Path, end: str) -> None:
    done = program(
        f"with semel.open(folder, settings=SMALL) as log:\n    log.create_topic('orders')\n    {end}", tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_threads_work_on_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    done = program(
        """
        opening = semel.open  # Python imports hardly anything once the main thread has ended
        def work():
            with opening(folder, settings=SMALL) as log, log.producer(transactional_id="t") as producer:
                log.create_topic("orders")
                while threading.main_thread().is_alive():
                    time.sleep(0.01)
                for number in range(20):
                    with producer.transaction():
                        producer.send("orders", b"x" * 300_000)
        threading.Thread(target=work).start()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(values(tmp_path)) == 20


def test_ctrl_c_in_the_block_is_the_programs_and_closes_it(tmp_path: Path) -> None:
    """The signal is handled by whom the program says: nothing of it is taken."""
    done = program(
        """
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        try:
            with semel.open(folder, settings=SMALL) as log:
                log.create_topic("orders")
                producer = log.producer(transactional_id="t")
                producer.begin_transaction()
                producer.send("orders", b"never").result(60)
                assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                log.consumer(group="g", topics=["orders"]).poll(60)
        except KeyboardInterrupt:
            print("interrupted")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with semel.open(tmp_path, settings=SMALL) as log, log.admin() as admin:
        assert admin.transaction("t").state == "CompleteAbort"


def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Node.start

    async def interrupted(*arguments: object, **options: object) -> Node:
        os.kill(os.getpid(), signal.SIGINT)
        return await start(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Node, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            semel.open(tmp_path, settings=SMALL)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "semel-embedded"]
    with semel.open(tmp_path, settings=SMALL) as log:
        assert log.topics() == []


def test_a_close_that_is_interrupted_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = semel.open(tmp_path, settings=SMALL)
    stop, handled, gate = Node.stop, threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    async def interrupted(node: Node, *, grace_ms: int | None = None) -> None:
        while not handled.is_set():  # until the main thread waits for the end of this
            await asyncio.sleep(0.05)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.to_thread(gate.wait, WAIT_S)
        await stop(node, grace_ms=grace_ms)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Node, "stop", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.close()
        threading.Timer(0.2, gate.set).start()
        log.close()
        assert gate.is_set(), "it waits for the end of the node again"
        with semel.open(tmp_path, settings=SMALL):
            pass
    finally:
        signal.signal(signal.SIGINT, before)


def test_D3_another_process_is_named_that_has_the_directory(tmp_path: Path) -> None:
    with semel.open(tmp_path, settings=SMALL):
        done = program("semel.open(folder)", tmp_path)
        assert f"in use by process {os.getpid()}. Stop that one, or close the log there" in done.stderr
        served = subprocess.run(
            [sys.executable, "-P", "-m", "semel.cli", "serve", "--data-dir", str(tmp_path)],
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
        assert served.returncode == 3
        assert f"in use by process {os.getpid()}" in served.stderr


def test_a_forked_child_can_not_use_it_and_holds_nothing_of_it(tmp_path: Path) -> None:
    """Also not the lock: a child that lives on must not keep the directory from the next open."""
    read, write = os.pipe()
    with semel.open(tmp_path, settings=SMALL) as log:
        log.create_topic("orders")
        admin, name = log.admin(), log._core.link.name
        child = os.fork()
        if child == 0:
            said = []
            for use in (log.topics, log.producer, admin.topics, lambda: semel.Admin(name)):
                try:
                    use()
                except semel.UsageError as error:
                    said.append(error.message)
            log.close()
            core._close_at_exit()
            os.write(write, "\n".join(said).encode() + b"\0")
            signal.pause()  # it lives on, with all that it has inherited
        try:
            text = b""
            while not text.endswith(b"\0"):
                text += os.read(read, 65_536)
            lines = text.decode()[:-1].split("\n")
            assert len(lines) == 4
            assert lines[0] == lines[1]
            assert "can't be used in its forked child" in lines[0]
            assert "can't be used in its forked child" in lines[2]
            assert "is not open in this process" in lines[3]
            assert [topic.name for topic in log.topics()] == ["orders"]
            log.close()
            with semel.open(tmp_path, settings=SMALL) as again:
                assert [topic.name for topic in again.topics()] == ["orders"]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            os.close(write)


FORKING = """
import os, sys
import semel

SMALL = {settings!r}
with semel.open(sys.argv[1] + "/parent", settings=SMALL) as log:
    log.create_topic("orders")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with semel.open(sys.argv[1] + "/child", settings=SMALL) as own, own.producer() as producer:
                own.create_topic("orders")
                producer.send("orders", b"child").result({wait_s})
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(log.topics()) == 1
"""


def test_a_forked_child_may_open_a_directory_of_its_own(tmp_path: Path) -> None:
    """In a process of its own: the threads that other tests have left here may be in the midst of gRPC at the fork."""
    script = FORKING.format(settings=SMALL, wait_s=WAIT_S)
    done = subprocess.run([sys.executable, "-P", "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert values(tmp_path / "child") == [b"child"]


def test_close_in_a_callback_is_refused(tmp_path: Path) -> None:
    with semel.open(tmp_path, settings=SMALL) as log, log.producer() as producer:
        log.create_topic("orders")
        refused: list[BaseException] = []

        def called(*_: object) -> None:
            try:
                log.close()
            except semel.UsageError as error:
                refused.append(error)

        producer.send("orders", b"1", on_delivery=called).result(WAIT_S)
        producer.flush()
        (error,) = refused
        assert "callback" in str(error)
        assert log.topics()


def test_what_it_says_goes_to_logging_and_nothing_to_the_standard_streams(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    handlers = logging.getLogger().handlers[:]
    with caplog.at_level("INFO", logger="semel"):
        for _ in range(2):
            with semel.open(tmp_path, settings=SMALL) as log:
                if not log.topics():
                    log.create_topic("orders")
    assert logging.getLogger().handlers == handlers
    assert [record for record in caplog.records if record.name.startswith("semel.")]
    assert capfd.readouterr() == ("", "")


def test_import_semel_loads_no_node() -> None:
    done = program(
        "semel.Admin\nimport semel.aio\nprint([name for name in sys.modules if 'semel.broker' in name])",
        "unused",
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_failed_start_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(NodeStartError):
        semel.open(tmp_path / "data", settings=SMALL)
    (tmp_path / "data").unlink()
    with semel.open(tmp_path / "data", settings=SMALL) as log:
        assert log.topics() == []


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with semel.open("~/data") as log:
        assert log.path == str(tmp_path / "data")
