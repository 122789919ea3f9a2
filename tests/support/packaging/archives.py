"""What a wheel and a source archive of Semel must have in them, and must not. `make wheel` runs it on what it built."""

from __future__ import annotations

import configparser
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPILED = tuple((ROOT / "compiled-modules.txt").read_text().split())
CYTHON_ALONE = tuple(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted((ROOT / "broker").rglob("*.pyx"))
)
"""Compiled modules without a twin in plain Python."""
FOREIGN = ("tests", "test", "docs", "bench", "docker", "proto")
"""Folders that stay in the checkout."""
SOURCES = (".c", ".h", ".cpp", ".pxd", ".pyx", ".html")
CONSOLE = (ROOT / "web" / "console" / "templates", ROOT / "web" / "console" / "static")
"""Folders whose files a wheel has, too: the pages of the console are made from them."""


def faults_of_wheel(path: Path, *, compiled: bool) -> Iterator[str]:
    """Say what is wrong with a wheel: `compiled` is whether it must have all compiled modules, or none."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = next(name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        yield from _faults_of_metadata(wheel.read(f"{info}/METADATA").decode())
        entries = configparser.ConfigParser(delimiters=("=",))
        entries.optionxform = str  # type: ignore[assignment,method-assign]
        entries.read_string(wheel.read(f"{info}/entry_points.txt").decode())
        if {name: dict(entries[name]) for name in entries.sections()} != {
            "console_scripts": PROJECT["scripts"],
            **PROJECT["entry-points"],
        }:
            yield "its entry points are not those of pyproject.toml"
        for target in (*PROJECT["scripts"].values(), *PROJECT["entry-points"]["pytest11"].values()):
            if f"{target.partition(':')[0].replace('.', '/')}.py" not in names:
                yield f"an entry point names {target}, which it does not have"
    tops = {name.partition("/")[0] for name in names}
    if tops != {"semel", "pyspark_semel", info}:
        yield f"it installs {', '.join(sorted(tops))}"
    pages = {f"semel/{path.relative_to(ROOT)}" for folder in CONSOLE for path in folder.iterdir()}
    for wanted in ("semel/py.typed", f"{info}/licenses/LICENSE", "semel/protocol/v1/common_pb2.pyi", *sorted(pages)):
        if wanted not in names:
            yield f"it has no {wanted}"
    for name in sorted(names - pages):
        if name.endswith(SOURCES) or "/tests/" in name or "__pycache__" in name:
            yield f"it has {name}"
    built = {name.partition(".")[0].replace("/", ".").removeprefix("semel.") for name in names if name.endswith(".so")}
    if built != ({*COMPILED, *CYTHON_ALONE} if compiled else set()):
        yield f"compiled are {', '.join(sorted(built)) or 'no modules'}, not those of compiled-modules.txt and setup.py"
    python, _, platform = path.stem.split("-")[-3:]
    if compiled and (python == "py3" or platform.startswith("linux")):
        yield f"its tag is {python}, {platform}: an index takes compiled wheels of one Python, with a policy's tag"


def faults_of_sdist(path: Path) -> Iterator[str]:
    """Say what is wrong with a source archive."""
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"src/semel/{name.replace('.', '/')}.py" for name in COMPILED}
    sources |= {f"src/semel/{name.replace('.', '/')}.pyx" for name in CYTHON_ALONE}
    wanted = {"pyproject.toml", "setup.py", "compiled-modules.txt", "LICENSE", "README.md", "CHANGELOG.md", *sources}
    wanted |= {f"src/semel/{path.relative_to(ROOT)}" for folder in CONSOLE for path in folder.iterdir()}
    for name in sorted(wanted - files):
        yield f"it has no {name}"
    for name in sorted(files):
        if name.partition("/")[0] in FOREIGN or name.endswith((".c", ".so", ".pyc")):
            yield f"it has {name}"


def _faults_of_metadata(text: str) -> Iterator[str]:
    metadata = Parser().parsestr(text)
    if (metadata["Name"], metadata["Version"]) != (PROJECT["name"], PROJECT["version"]):
        yield f"it is {metadata['Name']} {metadata['Version']}"
    if metadata["License-Expression"] != PROJECT["license"]:
        yield "it does not say its license"
    if set(metadata.get_all("Provides-Extra", ())) != PROJECT["optional-dependencies"].keys():
        yield "its extras are not those of pyproject.toml"


def main(folder: Path) -> int:
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    faults = [f"{path.name}: {fault}" for path in wheels for fault in faults_of_wheel(path, compiled=True)]
    faults += [f"{path.name}: {fault}" for path in sdists for fault in faults_of_sdist(path)]
    if not wheels or len(sdists) != 1:
        faults.append(f"{folder} has {len(wheels)} wheels and {len(sdists)} source archives")
    print("\n".join(faults) or f"{folder} has what it should: {', '.join(path.name for path in (*wheels, *sdists))}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
