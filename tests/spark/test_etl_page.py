"""docs/spark-etl.md, run as it is written: every cell in its order, and each prints what the page says that it does."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_cells import Notebook, cells_of

from semel.runtime.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "spark-etl.md"
FOLDER_ON_PAGE = "/home/me/etl"
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*"), "<time>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r" +$", re.MULTILINE), ""),
)
"""What differs from run to run: moments and ids. Everything else that is printed has to be the same."""


def settled(printed: str) -> str:
    for pattern, name in CHANGING:
        printed = pattern.sub(name, printed)
    return printed.strip()


def test_every_block_of_the_page_is_a_cell_or_what_one_prints() -> None:
    text = PAGE.read_text()
    cells = list(cells_of(text))
    fences = text.count("\n```") + text.startswith("```")
    assert fences == 2 * (len(cells) + sum(1 for cell in cells if cell.printed))


@pytest.mark.drawn(1, "long runs of Spark")
def test_E2_the_notebook_of_an_etl_prints_what_the_page_says(
    spark: SparkSession, spark_environment: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, grpc = free_ports(2)
    ports = {"localhost:9092": f"localhost:{kafka}", "localhost:9094": f"localhost:{grpc}"}
    environment = {
        **os.environ,
        **spark_environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SEMEL_KAFKA_LISTEN": f"127.0.0.1:{kafka}",
        "SEMEL_GRPC_LISTEN": f"127.0.0.1:{grpc}",
        "SEMEL_BOOTSTRAP": f"127.0.0.1:{grpc}",
        "SEMEL_DISK_MIN_FREE_BYTES": "0",
    }
    monkeypatch.chdir(tmp_path)
    for name, value in spark_environment.items():
        monkeypatch.setenv(name, value)  # of the job that a cell starts
    monkeypatch.syspath_prepend(str(tmp_path))  # as it is in a notebook
    text = PAGE.read_text()
    with Notebook(tmp_path, environment) as notebook:
        for cell in cells_of(text):
            code = cell.code
            for on_page, here in ports.items():
                code = code.replace(on_page, here)
            printed = notebook.run(dataclasses.replace(cell, code=code))
            printed = printed.replace(str(tmp_path), FOLDER_ON_PAGE)
            printed = printed.replace(f":{kafka} ", ":9092 ").replace(f":{grpc} ", ":9094 ")
            log = tmp_path / "late_job.log"
            told = log.read_text()[-3_000:] if log.exists() else ""
            assert settled(printed) == settled(cell.printed), f"{cell}\n{told}"
    sys.modules.pop("late_job", None)
