"""Looks for secrets in the files of this repository: keys, tokens, and passwords in addresses and assignments.

Passwords of tests and examples are allowed by name, below. A key or a token is never: tests make their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
SIZE_MAX: Final = 4 << 20
"""Larger files are recordings, which no person writes."""
OF_TESTS: Final = frozenset(
    ("***", "password", "PASSWORD", "secret", "SECRET", "geheim", "hunter2", "hunter2-hunter2", "wonder=,land")
)
_PLAIN: Final = r"[^\s/:@{}<>\"'`$%]"
SIGNS: Final = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    "a key of AWS": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50})"),
    "a token of GitLab": re.compile(r"\bglpat-[A-Za-z0-9_-]{20}"),
    "a token of PyPI": re.compile(r"\bpypi-[A-Za-z0-9_-]{50}"),
    "a token of Slack": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10}"),
    "a key of Google": re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    "a JWT": re.compile(r"\beyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    "a password in an address": re.compile(rf"://{_PLAIN}{{1,64}}:(?P<secret>{_PLAIN}{{3,64}})@"),
    "a password": re.compile(
        r"(?:[Pp]assword|PASSWORD|[Ss]ecret|SECRET|[Aa]pi[_-]?[Kk]ey|API_KEY)[\"']?\s*[:=]\s*"
        r"[\"'](?P<secret>[^\"'\s{}<>$]{12,})[\"']"
    ),
}


def secrets_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the kind of all that looks like a secret."""
    for kind, sign in SIGNS.items():
        for match in sign.finditer(text):
            if match.groupdict().get("secret") not in OF_TESTS:
                yield text.count("\n", 0, match.start()) + 1, kind


def files() -> Iterator[Path]:
    """Yield the files that are committed, or are to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    for name in filter(None, listed.stdout.split(b"\0")):
        path = ROOT / name.decode()
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= SIZE_MAX:
            yield path


def main() -> int:
    if not (ROOT / ".git").exists():
        print("secrets: this is no checkout of git, so nothing was looked at")
        return 0
    found = 0
    for path in files():
        for line, kind in secrets_in(path.read_text(encoding="utf-8", errors="replace")):
            found += 1
            print(f"{path.relative_to(ROOT)}:{line}: {kind}")
    if found:
        print(
            "Take them out, and out of the history, and make them void where they are known. A password that is a "
            f"test's own is allowed by its name in {Path(__file__).relative_to(ROOT)}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
