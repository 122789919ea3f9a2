"""Generates the sync API of the clients from the asyncio one: `make sync-api` writes it, `make check` compares.

Of each folder in `FOLDERS`, `aio.py` is written by hand and `api.py` is made from it, token by token: `async` and
`await` go, and the names in `NAMES` change. What a program can't translate is written by hand twice, with the same
methods: how to wait (`transport/awaiting.py` and `blocking.py`), and `send`, the hot path (`producer/sending.py`).
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Final

SDK: Final = Path(__file__).resolve().parent
FOLDERS: Final = ("admin", "consumer", "embedded", "pipeline", "producer", "schemas", "shared")
NAMES: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "AsyncHandler": "Handler",
    "AsyncIterator": "Iterator",
    "AsyncPoll": "Poll",
    "AsyncOpening": "Opening",
    "AsyncSending": "Sending",
    "AsyncTransactionSending": "TransactionSending",
    "aio": "api",
    "awaiting": "blocking",
}
HEADER: Final = """\
# Generated from aio.py beside it by `make sync-api`. Do not edit: change aio.py, and run that again.
"""
_IN_TEXT: Final = re.compile(r"\b(?:async|await) |(?<=\bsemel\.)aio\.")
_EACH: Final = re.compile(r"^( *)for (\w+) in (.+):\n +yield \2$", re.MULTILINE)


def translated(source: str) -> str:
    """Return the sync code for asyncio code, not formatted.

    >>> print(translated("async with a, b:\\n    x = await f('await it')"))
    with a, b:
        x = f('it')
    >>> print(translated("async for x in y:\\n    yield x"))
    yield from y
    """
    lines = source.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        kind = tokenize.tok_name[token.type]
        text = token.string
        if kind == "NAME" and text in ("async", "await"):
            new = None
        elif kind == "NAME":
            new = NAMES.get(text, text)
        elif kind in ("STRING", "FSTRING_MIDDLE", "COMMENT"):
            new = _IN_TEXT.sub("", text)
        else:
            continue
        if new == text:
            continue
        (first, start), (last, end) = token.start, token.end
        if new is None:
            new, end = "", end + 1  # with the space behind it
        before, after = lines[first - 1][:start], lines[last - 1][end:]
        lines[first - 1 : last] = [before + new + after]
    return _EACH.sub(r"\1yield from \3", "".join(lines))  # what asyncio lacks; it takes no step of ours for a record


def generated(folder: str) -> str:
    """Return what `api.py` of a folder is to be."""
    text = HEADER + translated((SDK / folder / "aio.py").read_text(encoding="utf-8"))
    name = f"sdk/{folder}/api.py"
    text = _ruff(
        ["check", "--quiet", "--fix", "--exit-zero", "--select", "I,F401", "--stdin-filename", name, "-"], text
    )
    return _ruff(["format", "--quiet", "--stdin-filename", name, "-"], text)


def _ruff(arguments: list[str], text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(command, cwd=SDK.parent, input=text, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise SystemExit(f"ruff can't read what is made for {arguments[-2]}:\n{done.stderr}")
    return done.stdout


def main() -> int:
    """Write the files; with --check, say which differ, and return 1 where one does."""
    parser = argparse.ArgumentParser(description="Make the sync API from the asyncio one.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail where a file is not what it should be"
    )
    check = parser.parse_args().check
    differing = 0
    for folder in FOLDERS:
        path, text = SDK / folder / "api.py", generated(folder)
        if not check:
            path.write_text(text, encoding="utf-8")
            continue
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found != text:
            differing = 1
            name = f"sdk/{folder}/api.py"
            difference = difflib.unified_diff(
                found.splitlines(), text.splitlines(), name, f"{name}, generated", lineterm=""
            )
            print("\n".join(difference))
            print(f"{name} is not what sdk/{folder}/aio.py makes: run `make sync-api`", file=sys.stderr)
    return differing


if __name__ == "__main__":
    raise SystemExit(main())
