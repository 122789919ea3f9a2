"""Tasks of Airflow, Dagster and Prefect that are ended with SIGKILL around their commit, and tried again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from framework_stage import Stage, wait_for

import semel
from semel.runtime.ports import free_ports

PAGE = "how-to/orchestration.md"
DAY = "2026-11-21"
ROWS = [f"{DAY} {sensor}" for sensor in range(100)]

PUBLISH_ONCE_AND_DIE = '''
"""The page's function. The first attempt is ended with SIGKILL where the file `die` says."""
import os
import pathlib
import signal

import publish_once_of_the_page as page

die = pathlib.Path(os.environ["STAGE"], "die")


class DeadlyRows(list):
    def __iter__(self):
        yield from self[:50]
        end()


def end():
    die.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def publish_once(task, run, topic, rows):
    where = die.read_text() if die.exists() else ""
    done = page.publish_once(task, run, topic, DeadlyRows(rows) if where == "before the commit" else rows)
    if where == "after the commit":
        end()
    return done
'''

ORCHESTRATORS = {
    "airflow": ("-m", "airflow", "dags", "test", "readings", DAY),
    "dagster": (
        *("-m", "dagster", "asset", "materialize", "-f", "dagster_readings.py"),
        *("--select", "readings", "--partition", DAY),
    ),
    "prefect": ("prefect_readings.py", DAY),
}


def variables_of(stage: Stage) -> dict[str, str]:
    """Return what keeps an orchestrator's files in the stage's folder, and its thoughts at home."""
    here = str(stage.folder)
    airflow = {
        "AIRFLOW_HOME": f"{here}/airflow",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{here}/dags",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    dagster = {"DAGSTER_HOME": f"{here}/dagster", "DAGSTER_DISABLE_TELEMETRY": "yes"}
    prefect = {"PREFECT_HOME": f"{here}/prefect", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    return {"STAGE": here, "PYTHONPATH": here, "HOME": here} | airflow | dagster | prefect


def set_up(stage: Stage, where: str) -> Path:
    """Let the first attempt die, and return the file that is there until it has died."""
    stage.create_topics("readings")
    (stage.folder / "publish_once.py").rename(stage.folder / "publish_once_of_the_page.py")
    (stage.folder / "publish_once.py").write_text(PUBLISH_ONCE_AND_DIE)
    (stage.folder / "dagster").mkdir()
    die = stage.folder / "die"
    die.write_text(where)
    return die


@pytest.mark.parametrize("where", ["before the commit", "after the commit"])
@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_T13_E5_a_task_that_is_killed_and_retried_publishes_once(
    stage_of: Callable[..., Stage], orchestrator: str, where: str
) -> None:
    stage = stage_of(PAGE)
    die = set_up(stage, where)
    variables = variables_of(stage)
    if orchestrator == "airflow":
        stage.run("airflow", "-m", "airflow", "db", "migrate", **variables)
    task = "readings" if orchestrator == "dagster" else "readings.publish"
    killed = stage.start(orchestrator, *ORCHESTRATORS[orchestrator], **variables)
    killed.ended()  # Dagster's process ends well: of its own accord it tries the task again, whose process was killed
    assert not die.exists(), killed.log()[-6000:]
    with semel.Admin(stage.node.bootstrap) as admin:
        if where == "after the commit":
            assert [commit.token for commit in admin.commits(task)] == [DAY]
        logs = killed.log() + "".join(stage.run(orchestrator, *ORCHESTRATORS[orchestrator], **variables) for _ in "ab")
        assert [(commit.token, commit.payload) for commit in admin.commits(task)] == [(DAY, b"100 rows")]
    found = re.findall(f"{DAY}: (published|an earlier attempt)", logs)
    assert found[0] == ("published" if where == "before the commit" else "an earlier attempt"), logs[-6000:]
    assert set(found[1:]) == {"an earlier attempt"}, logs[-6000:]
    assert stage.values("readings") == sorted(ROWS)


def test_T13_E5_airflows_scheduler_tries_a_killed_task_again(stage_of: Callable[..., Stage]) -> None:
    stage = stage_of(PAGE)
    die = set_up(stage, "after the commit")
    (port,) = free_ports(1)
    served = f"http://127.0.0.1:{port}"
    settings = {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": served,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{served}/execution/",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    }
    airflow = stage.start("airflow", "-m", "airflow", "standalone", **variables_of(stage), **settings)

    def logs() -> str:
        return "".join(path.read_text() for path in (stage.folder / "airflow" / "logs").glob("dag_id=*/*/*/*.log"))

    wait_for(lambda: "an earlier attempt had published it" in logs() or not airflow.is_running, logs)
    assert not die.exists()
    assert airflow.is_running, airflow.log()[-6000:]
    airflow.kill()
    with semel.Admin(stage.node.bootstrap) as admin:
        assert [commit.payload for commit in admin.commits("readings.publish")] == [b"100 rows"]
    assert len(stage.values("readings")) == len(ROWS)
