"""Which of the long tests a commit runs: of each group a few are drawn by the commit.

All of them take an hour and more. `@pytest.mark.drawn(2)` has two of the test's parameter sets run, and
`@pytest.mark.drawn(2, "kills under Spark")` two of all tests that name this group. A repetition runs the same ones,
and another commit others. All run with EVERY_TEST=1 (`make test-long`), and where a test is named by its id or by -k.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants.sample_seed import sample_seed


def leave_others_out(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    if os.environ.get("EVERY_TEST") or config.option.keyword or any("::" in given for given in config.args):
        return
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    counts: dict[str, int] = {}
    for item in items:
        if (marker := item.get_closest_marker("drawn")) is not None:
            count, *named = marker.args
            name = named[0] if named else item.nodeid.partition("[")[0]
            if counts.setdefault(name, count) != count:
                raise pytest.UsageError(f"{item.nodeid}: others draw {counts[name]} of {name!r}, and not {count}")
            groups[name].append(item)
    seed = sample_seed(Path(__file__).parent)
    for name, members in groups.items():
        members.sort(key=lambda item: item.nodeid)
        drawn = random.Random(f"{seed} {name}").sample(members, min(counts[name], len(members)))
        for item in members:
            if item not in drawn:
                item.add_marker(pytest.mark.skip(reason="other commits run it, and EVERY_TEST=1"))
