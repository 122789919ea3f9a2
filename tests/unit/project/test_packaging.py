"""What is published: the source archive has what an install from it needs, and extras ask for what is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_source_archive_has_what_the_compiled_modules_are_built_from(tmp_path: Path) -> None:
    command = ["setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "SEMEL_INTERPRETED": "1"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    compiled = (ROOT / "compiled-modules.txt").read_text().split()
    sources = {f"src/semel/{name.replace('.', '/')}.py" for name in compiled}
    declarations = {f"src/semel/{path.relative_to(ROOT)}" for path in ROOT.glob("*/**/*.pxd") if _is_ours(path)}
    assert declarations
    assert {"compiled-modules.txt", "setup.py", "pyproject.toml", *sources, *declarations} <= held


def test_the_extra_for_spark_asks_for_a_pyspark_that_has_what_streams_import() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    (least,) = re.findall(r"pyspark>=([\d.]+)", " ".join(extra))
    modules = {name for path in (ROOT / "spark").rglob("*.py") for name in re.findall(r"from (\S+)", path.read_text())}
    since = {"pyspark.sql.datasource": (4, 0), "pyspark.sql.streaming.datasource": (4, 2)}
    assert modules >= since.keys()
    assert tuple(map(int, least.split("."))) >= max(since.values())
    assert f"PySpark {least} or newer" in (ROOT / "docs" / "spark.md").read_text()


def _is_ours(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] in {"protocol", "sdk", "broker", "runtime"}
