"""Looks up known faults of security of what a file pins, by pip-audit: `audit.py constraints.txt`.

Exit codes: 0 none is known, 1 some are, 2 not all could be looked up. pip-audit takes a package that it can't look up
for one that there is not, and calls that a success: without a network it would find all well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

TIMEOUT_S = 600


def verdict(found: dict[str, Any]) -> tuple[int, str]:
    """Return the exit code and what to say about pip-audit's answer."""
    packages = found["dependencies"]
    faulty = [each for each in packages if each.get("vulns")]
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    lines = [
        f"{each['name']} {each['version']}: {fault['id']}"
        + (f", fixed in {', '.join(fault['fix_versions'])}" if fault["fix_versions"] else "")
        for each in faulty
        for fault in each["vulns"]
    ]
    if unknown or not packages:
        lines.append(
            f"{len(unknown)} of {len(packages)} packages could not be looked up ({', '.join(unknown[:3])}...): this "
            "needs a network that reaches pypi.org. They were NOT audited"
        )
        return 2, "\n".join(lines)
    if faulty:
        return 1, "\n".join([*lines, "Take newer versions (`make lock`), or say in pyproject.toml why not."])
    return 0, f"{len(packages)} packages: no fault is known"


def main(path: str) -> int:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--requirement", path]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off", "--timeout", "10"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        print("pip-audit could not look anything up, so NOTHING was audited. It needs a network.")
        print(done.stderr[-2_000:])
        return 2
    code, text = verdict(found)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
