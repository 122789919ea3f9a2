"""The documentation is built, and whatever Sphinx warns of is an error: a broken link, a page that is in no list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import semel

ROOT = Path(__file__).parents[2]

SPHINX = (sys.executable, "-P", "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    build = subprocess.run(
        [*SPHINX, "--doctree-dir", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    return folder / "html"


def test_every_public_name_is_in_the_reference(built: Path) -> None:
    page = (built / "reference" / "python.html").read_text()
    missing = [name for name in semel.__all__ if name != "aio" and f'id="semel.{name}"' not in page]
    missing += [name for name in semel.aio.__all__ if f'id="semel.aio.{name}"' not in page]
    assert not missing


def test_what_is_made_of_the_code_is_in_its_pages(built: Path) -> None:
    assert 'id="semel-topic-create"' in (built / "reference" / "commands.html").read_text()
    assert "EndTransaction" in (built / "reference" / "grpc.html").read_text()
    assert 'data-move="Ongoing --&gt; PrepareCommit"' in (built / "reference" / "states.html").read_text()
    assert "<!-- made:" not in "".join(page.read_text() for page in built.glob("**/*.html"))


def test_pages_need_no_network(built: Path) -> None:
    for page in built.glob("**/*.html"):
        text = page.read_text()
        assert 'src="http' not in text
        assert 'rel="stylesheet" type="text/css" href="http' not in text
