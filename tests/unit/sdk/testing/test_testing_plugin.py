"""pytest's plugin, in runs of pytest of their own: its fixtures, its options, and the examples of docs/testing.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def run_pytest(folder: Path, *arguments: str, status: int = 0) -> str:
    """Run pytest in a folder as a user does, who has a `pytest` command and no settings of ours."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def write_files(folder: Path) -> None:
    """Write the page's blocks that name a file."""
    for block in BLOCKS:
        if block.startswith("# ") and block.split("\n")[0].endswith(".py"):
            (folder / block.split("\n")[0][2:]).write_text(block)


@pytest.mark.drawn(1, "the plugin's documented project")
def test_the_documented_project_passes_as_written(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "enrich.py",
        "test_enrich.py",
        "conftest.py",
        "test_permissions.py",
        "test_with_librdkafka.py",
    }
    assert "6 passed" in run_pytest(tmp_path, "-W", "error")


@pytest.mark.drawn(1, "the plugin's documented project")
def test_the_documented_project_passes_with_a_broker_for_each_worker_and_for_each_test(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert "4 passed" in run_pytest(tmp_path, "-n", "2", "-o", "semel_broker_scope=function", "test_enrich.py")


def test_the_documented_programs_run_as_written(tmp_path: Path) -> None:
    programs = [block for block in BLOCKS if not block.startswith("# ")]
    assert len(programs) == 3
    for program in programs:
        if found := re.search(r"^def (test_\w+)\(\)", program, re.MULTILINE):
            program += f"\n{found[1]}()\n"
        subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, check=True, timeout=60)


def test_documented_fixtures_and_methods_are_there() -> None:
    from semel.sdk.testing import plugin
    from semel.testing import Broker

    fixtures = {name for name in vars(plugin) if name.startswith("semel_")}
    assert set(re.findall(r"^\| `(semel_\w+)", PAGE, re.MULTILINE)) == fixtures
    faults = PAGE[PAGE.index("## Faults") : PAGE.index("## A cluster")]
    methods = set(re.findall(r"`(\w+)\(", faults)) - {"wait", "remove", "Broker", "advance"}
    assert {"drop_commit_answer", "fence_producer", "pause_partition", "kill", "fail_disk"} <= methods
    assert {name for name in methods if not callable(getattr(Broker, name, None))} == set()


@pytest.mark.drawn(1, "the plugin's brokers")
def test_every_worker_has_a_broker_of_its_own_and_every_test_topics_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_workers.py").write_text(
        """
import os
from pathlib import Path

import pytest

SEEN = Path(__file__).with_name("seen")


@pytest.mark.parametrize("number", range(8))
def test_number(number, semel_broker, semel_topic, semel_create_topic, semel_commit, semel_committed):
    semel_commit(semel_topic, b"%d" % number)
    assert [record.value for record in semel_committed(semel_topic, at_least=1)] == [b"%d" % number]
    assert semel_create_topic() != semel_topic
    with SEEN.open("a") as file:
        file.write(f"{os.getpid()} {semel_broker.bootstrap} {semel_topic} {len(semel_broker.topics())}\\n")
"""
    )
    assert "8 passed" in run_pytest(tmp_path, "-n", "2")
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    processes, brokers = {line[0] for line in seen}, {tuple(line[:2]) for line in seen}
    assert len(processes) == len(brokers) == 2
    assert len({line[2] for line in seen}) == 8
    assert {line[3] for line in seen} == {"2"}, "topics of earlier tests are deleted"


def test_a_shared_broker_is_reset_after_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_mended.py").write_text(
        """
import pytest
import semel

SEEN = set()


@pytest.fixture
def waiting(semel_producer, semel_topic):
    producer = semel_producer()
    yield producer
    producer.send(semel_topic, b"after the test").result(30)


@pytest.mark.parametrize("fault", ["refuse_connections", "kill", "stop", "fail_disk", "drop_commit_answer"])
def test_fault(fault, semel_broker, semel_topic, semel_commit, semel_committed, waiting):
    SEEN.add(semel_broker)
    assert len(SEEN) == 1
    semel_commit(semel_topic, b"1")
    assert len(semel_committed(semel_topic, at_least=1)) == 1
    getattr(semel_broker, fault)()


def test_fenced_producers_are_closed_without_a_word(semel_broker, semel_topic, semel_producer):
    producer = semel_producer(transactional_id=semel_topic)
    producer.begin_transaction()
    producer.send(semel_topic, b"1").result(30)
    semel_broker.fence_producer(semel_topic)
    with pytest.raises(semel.FencedError):
        producer.commit_transaction()


def test_fresh_broker_is_another(semel_broker, semel_fresh_broker, semel_aio_broker):
    semel_fresh_broker.create_topic("alone")
    assert semel_fresh_broker.bootstrap != semel_broker.bootstrap == semel_aio_broker.bootstrap
    assert semel_fresh_broker.topics() == ["alone"]
    assert semel_broker.topics() == []


def test_clients_come_with_their_options(semel_topic, semel_producer, semel_consumer, semel_abort, semel_uncommitted):
    semel_producer(linger_ms=0).send(semel_topic, b"1").result(30)
    semel_abort(semel_topic, b"2")
    (record,) = next(semel_consumer(group=semel_topic, topics=[semel_topic]).batches())
    assert record.value == b"1"
    assert [record.value for record in semel_uncommitted(semel_topic)] == [b"1", b"2"]
"""
    )
    assert "8 passed" in run_pytest(tmp_path)


@pytest.mark.drawn(1, "the plugin's brokers")
def test_settings_reach_every_broker_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nsemel_broker_settings = ["num.partitions = 3", "auto.create.topics.enable=false"]\n'
    )
    (tmp_path / "test_settings.py").write_text(
        """
import pytest
import semel


@pytest.fixture(scope="session", params=["shared"])
def of_the_session(semel_broker):
    return semel_broker


def test_settings(of_the_session, semel_fresh_broker):
    for broker in (of_the_session, semel_fresh_broker):
        with semel.Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
            assert len(admin.topic("t").partitions) == 3
"""
    )
    assert "1 passed" in run_pytest(tmp_path)
    assert "not NAME=VALUE" in run_pytest(tmp_path, "-o", "semel_broker_settings=num.partitions", status=1)
    assert "no setting" in run_pytest(tmp_path, "-o", "semel_broker_settings=num.partition=3", status=1)
    assert "is not one of session" in run_pytest(tmp_path, "-o", "semel_broker_scope=forever", status=4)


@pytest.mark.parametrize("arguments", [("--collect-only",), ("--fixtures",), ()])
def test_the_plugin_imports_nothing_that_tests_do_not_ask_for(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    (tmp_path / "conftest.py").write_text(
        """
import sys


def pytest_unconfigure(config):
    assert config.pluginmanager.has_plugin("semel")
    ours = sorted(name for name in sys.modules if name.startswith("semel"))
    assert ours == ["semel", "semel.sdk", "semel.sdk.testing", "semel.sdk.testing.plugin"], ours
    assert "grpc" not in sys.modules and "sqlalchemy" not in sys.modules
    print("looked")
"""
    )
    assert "looked" in run_pytest(tmp_path, *arguments)
