"""Threads that take work for as long as their owner lives."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from semel.runtime.threads import Threads

WAIT_S = 60.0


def names(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_work_is_done_and_its_errors_are_returned() -> None:
    with Threads(2, "t-work") as threads:
        assert threads.submit(divmod, 7, 3).result(WAIT_S) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            threads.submit(divmod, 7, 0).result(WAIT_S)
        assert list(threads.map(abs, [-1, -2])) == [1, 2]


def test_a_thread_is_started_only_when_none_is_idle_and_no_more_than_there_may_be() -> None:
    with Threads(2, "t-few") as threads:
        assert names("t-few") == []
        for _ in range(5):
            threads.submit(abs, 1).result(WAIT_S)
            until(lambda: threads._idle._value == 1)
        assert len(names("t-few")) == 1
        gate = threading.Event()
        waiting = [threads.submit(gate.wait, WAIT_S) for _ in range(4)]
        assert len(names("t-few")) == 2
        gate.set()
        assert all(one.result(WAIT_S) for one in waiting)


def test_shutdown_does_what_was_submitted_and_takes_no_more() -> None:
    threads = Threads(1, "t-end")
    gate = threading.Event()
    first, second = threads.submit(gate.wait, WAIT_S), threads.submit(abs, -1)
    gate.set()
    threads.shutdown()
    assert first.result(0)
    assert second.result(0) == 1
    assert names("t-end") == []
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(abs, 1)


def test_shutdown_can_cancel_what_has_not_begun() -> None:
    threads = Threads(1, "t-cancel")
    gate, begun = threading.Event(), threading.Event()
    first = threads.submit(lambda: (begun.set(), gate.wait(WAIT_S)))
    assert begun.wait(WAIT_S)
    waiting = [threads.submit(abs, 1) for _ in range(3)]
    threads.shutdown(wait=False, cancel_futures=True)
    gate.set()
    first.result(WAIT_S)
    assert all(one.cancelled() for one in waiting)
    until(lambda: names("t-cancel") == [])


def test_threads_that_nobody_has_any_more_end() -> None:
    threads = Threads(2, "t-lost")
    threads.submit(abs, 1).result(WAIT_S)
    del threads
    gc.collect()
    until(lambda: names("t-lost") == [])


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert Threads(1, "t-none").submit(threading.current_thread).result(0) is threading.current_thread()


def test_work_is_taken_after_the_main_thread_has_ended_and_as_the_program_ends() -> None:
    """The standard library's pool refuses both."""
    program = (
        "import atexit, threading, time\n"
        "from semel.runtime.threads import Threads\n"
        "threads = Threads(1, 't')\n"
        "atexit.register(lambda: print('at exit', threads.submit(abs, -2).result()))\n"
        "def late():\n"
        "    while threading.main_thread().is_alive(): time.sleep(0.01)\n"
        "    print('late', threads.submit(abs, -1).result())\n"
        "threading.Thread(target=late).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split("\n") == ["late 1", "at exit 2", ""]


def test_a_forked_child_has_threads_of_its_own() -> None:
    threads = Threads(1, "t-fork")
    assert threads.submit(abs, -1).result(WAIT_S) == 1
    child = os.fork()
    if child == 0:
        os._exit(threads.submit(abs, -7).result(WAIT_S))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    threads.shutdown()
