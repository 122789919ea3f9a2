"""The generator of the sync API, and that what is committed is what it makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semel.sdk import sync_api


@pytest.mark.parametrize(
    ("asyncio_code", "sync_code"),
    [
        ("async def f():\n    return await g(await h())\n", "def f():\n    return g(h())\n"),
        ("async with a as b, c:\n    pass\n", "with a as b, c:\n    pass\n"),
        ("class A:\n    async def __aexit__(self): ...\n", "class A:\n    def __exit__(self): ...\n"),
        ("def f() -> AsyncIterator[int]: ...\n", "def f() -> Iterator[int]: ...\n"),
        ("from semel.sdk.producer.aio import Producer\n", "from semel.sdk.producer.api import Producer\n"),
        ("from semel.sdk.transport.awaiting import run\n", "from semel.sdk.transport.blocking import run\n"),
        ("for one in many:\n    yield one\n", "yield from many\n"),
        ("for one in many:\n    yield two\n", "for one in many:\n    yield two\n"),
        (
            '"""Do.\n\n    async with semel.aio.Producer() as p:\n        await p.send()\n"""\n',
            '"""Do.\n\n    with semel.Producer() as p:\n        p.send()\n"""\n',
        ),
        ("x = f'{a} await {b}'  # await it\n", "x = f'{a} {b}'  # it\n"),
        ("x = 'asynchronous, awaited; asyncio'\n", "x = 'asynchronous, awaited; asyncio'\n"),
    ],
)
def test_translation(asyncio_code: str, sync_code: str) -> None:
    assert sync_api.translated(asyncio_code) == sync_code


@pytest.mark.parametrize("folder", sync_api.FOLDERS)
def test_what_is_committed_is_what_is_generated(folder: str) -> None:
    pytest.importorskip("ruff")
    made = sync_api.generated(folder)
    assert (sync_api.SDK / folder / "api.py").read_text(encoding="utf-8") == made
    assert made.startswith("# Generated from aio.py beside it by `make sync-api`.")


def test_a_file_that_was_changed_by_hand_fails_the_check_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ruff")
    source = (sync_api.SDK / "admin" / "aio.py").read_text(encoding="utf-8")
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "aio.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sync_api, "SDK", tmp_path)
    monkeypatch.setattr(sync_api, "FOLDERS", ("admin",))
    monkeypatch.setattr(sys, "argv", ["sync_api"])
    assert sync_api.main() == 0
    path = tmp_path / "admin" / "api.py"
    right = path.read_text(encoding="utf-8")
    assert "async" not in right
    path.write_text(right.replace("Close. Does nothing", "Close. It does nothing"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["sync_api", "--check"])
    assert sync_api.main() == 1
    told = capsys.readouterr()
    assert "run `make sync-api`" in told.err
    assert '+        """Close. Does nothing the second time."""' in told.out
    assert path.read_text(encoding="utf-8") != right
    monkeypatch.setattr(sys, "argv", ["sync_api"])
    assert sync_api.main() == 0
    assert path.read_text(encoding="utf-8") == right
