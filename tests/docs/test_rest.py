"""The page on REST: what is typed there is typed here, and answers what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rest_gateway import rest_gateway

from semel.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"`([\w-]+\.json)`:\n\n```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = "--- end of a command ---"


def commands() -> list[tuple[str, str]]:
    """Return the commands of the page, but for the one that starts the gateway, each with what it prints there."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(PAGE.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    typed = [(command, "\n".join(printed)) for command, printed in found]
    return [(command, printed) for command, printed in typed if not command.startswith("semel http")]


def pattern(printed: str) -> re.Pattern[str]:
    """What a command may print: `...` stands for anything."""
    return re.compile(".*".join(re.escape(part.strip(" ")) for part in printed.split("...")), re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_what_is_typed_on_the_page_answers_what_it_says(tmp_path: Path) -> None:
    for name, content in FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(content)
    typed = commands()
    assert len(typed) > 15
    with Broker() as node, rest_gateway(node.bootstrap) as url:
        script = "\n".join(f"{command}\necho '{END}'" for command, _ in typed)
        script = script.replace("localhost:8080", url.removeprefix("http://"))
        command = ["bash", "-c", script]
        shell = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    printed = shell.stdout.split(f"{END}\n")[:-1]
    assert len(printed) == len(typed)
    for (command, said), got in zip(typed, printed, strict=True):
        assert pattern(said).fullmatch(got.strip()), f"{command}\nprinted\n{got}\nand the page says\n{said}"
