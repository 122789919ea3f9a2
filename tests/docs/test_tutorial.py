"""docs/tutorial.md, run as it is written: every cell in its order, and each prints what the page says that it does."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest
from page_cells import Notebook, cells_of

from semel.runtime.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
FOLDER_ON_PAGE = "/home/me/tour"
SECONDS = re.compile(r"(--timeout |--signal KILL |timeout_s=|; sleep )(\d+)")
"""Where the page gives something a time that is long on the reader's machine, whatever it starts in it."""
BUSY = 4
"""How much more time that is where others keep the machine busy."""


def test_every_block_of_the_tutorial_is_run_but_the_installation() -> None:
    text = PAGE.read_text()
    (install,) = [block.split("```")[0] for block in text.split("```sh\n")[1:]]
    for line in install.splitlines():
        assert line in (ROOT / "README.md").read_text(), "the README says it otherwise"
    assert text.count("\n```") == 2 * (len(list(cells_of(text))) + text.count("\n```text\n") + 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_E1_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    kafka, grpc = free_ports(2)
    ports = {"localhost:9092": f"localhost:{kafka}", "localhost:9094": f"localhost:{grpc}"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SEMEL_KAFKA_LISTEN": f"127.0.0.1:{kafka}",
        "SEMEL_GRPC_LISTEN": f"127.0.0.1:{grpc}",
        "SEMEL_BOOTSTRAP": f"127.0.0.1:{grpc}",
        "SEMEL_DISK_MIN_FREE_BYTES": "0",
    }
    assert len(SECONDS.findall(PAGE.read_text())) == 7
    with Notebook(tmp_path, environment) as notebook:
        for cell in cells_of(PAGE.read_text()):
            longer = BUSY if os.getloadavg()[0] > 2 * (os.cpu_count() or 1) else 1
            code = SECONDS.sub(lambda time: f"{time[1]}{int(time[2]) * longer}", cell.code)  # noqa: B023
            for on_page, here in ports.items():
                code = code.replace(on_page, here)
            printed = notebook.run(dataclasses.replace(cell, code=code)).replace(str(tmp_path), FOLDER_ON_PAGE)
            printed = printed.replace(f":{kafka} ", ":9092 ").replace(f":{grpc} ", ":9094 ")
            log = tmp_path / "node.log"
            told = log.read_text()[-2_000:] if log.exists() else ""
            assert printed.split("\n") == [line.strip() for line in cell.printed.split("\n")], f"{cell}\n{told}"
