"""Frameworks from PyPI, each with what it needs in a virtual environment of its own: build/frameworks/NAME.

The project's own environment stays as it is. pip fetches once, from where it is set up to take packages from, and not
again until the versions change. `framework_environments.py NAME ...` makes some of them, and prints their interpreters.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "frameworks"
INSTALL_TIMEOUT_S = 900

ENVIRONMENTS = {
    "faststream-aiokafka": ("faststream[kafka,cli]==0.7.8", "aiokafka==0.14.0"),
    "faststream-confluent": ("faststream[confluent,cli]==0.7.8", "confluent-kafka==2.16.1"),
    "quixstreams": ("quixstreams==3.28.1", "confluent-kafka==2.12.2"),
    "faust": ("faust-streaming==0.15.3", "aiokafka==0.14.0"),
    "bytewax": ("bytewax==0.21.1", "confluent-kafka==2.16.1"),
    "celery": ("celery==5.7.0", "kombu==5.7.0", "confluent-kafka==2.16.1"),
    "confluent-asyncio": ("confluent-kafka==2.16.1",),
    "airflow": ("apache-airflow==3.3.2", "--editable=."),
    "dagster": ("dagster==1.13.29", "--editable=."),
    "prefect": ("prefect==3.9.1", "--editable=."),
    "web": ("fastapi==0.165.0", "uvicorn==0.54.0", "django==5.2.19", "sqlalchemy==2.1.9", "--editable=.[sql]"),
}
"""What is installed, by the environment's name. The versions are those that docs/compatibility.md names."""


class FrameworkMissingError(Exception):
    """pip could not install a framework here; the text has what it said."""


def python_of(name: str) -> Path:
    """Return the interpreter that has a framework, installed where it is missing. Raises `FrameworkMissingError`."""
    wanted = "\n".join(ENVIRONMENTS[name])
    folder = CACHE / name
    python, made = folder / "bin" / "python", folder / "requirements.txt"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:  # another process may want it, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.is_file() and made.read_text() == wanted:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.split("\n")],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
            cwd=ROOT,
            env={**os.environ, "SEMEL_INTERPRETED": "1"},  # where Semel itself is among them, nothing is compiled
        )
        if done.returncode:
            raise FrameworkMissingError(
                f"pip could not install {', '.join(ENVIRONMENTS[name])}:\n{done.stderr[-2000:]}"
            )
        made.write_text(wanted)
    return python


if __name__ == "__main__":
    for each in sys.argv[1:] or ENVIRONMENTS:
        print(python_of(each))
