"""Search the seeds that find the planted faults (`faults.toml`): `make simulate-faults`.

It works in copies of the checkout. The exit code is 1 where a fault is not found, or no longer applies.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mutants.edits import DoesNotApplyError
from mutants.kept_list import BadListError

from simulation.planted_table import TABLE, PlantedFault, chosen, read_table, recorded
from simulation.planting import Field


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault. trouble: why there is no seed."""

    fault: PlantedFault
    seed: int | None
    kind: str
    tried: int
    seconds: float
    trouble: str = ""

    def line(self) -> str:
        fault = self.fault
        found = f"seed {self.seed:4}" if self.seed is not None else "-" * 9
        text = f"{fault.id:8} {found}  {self.tried:4} tried  {self.seconds:5.0f} s  {self.kind:12}  {fault.says}"
        if self.seed is None and fault.unseen:
            return f"{text} [unseen: {fault.unseen}]"
        return f"{text} [{self.trouble}]" if self.trouble else text

    @property
    def is_wrong(self) -> bool:
        return self.seed is None and not self.fault.unseen


def main() -> int:
    options = _parse()
    try:
        faults = chosen(read_table().faults, options.faults)
    except BadListError as error:
        print(error, file=sys.stderr)
        return 2
    begun = time.monotonic()
    outcomes = _search(faults, options)
    if options.record:
        found = {one.fault.id: (one.seed, one.kind) for one in outcomes if one.seed is not None}
        TABLE.write_text(recorded(TABLE.read_text(encoding="utf-8"), found), encoding="utf-8")
    wrong = [one.fault.id for one in outcomes if one.is_wrong]
    tried = sum(one.tried for one in outcomes)
    print(
        f"\n{len(outcomes)} faults, {sum(one.seed is not None for one in outcomes)} found with {tried} seeds "
        f"in {time.monotonic() - begun:.0f} s"
    )
    if wrong:
        print(f"not found: {' '.join(wrong)}")
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulate-faults", description=__doc__)
    parser.add_argument("faults", nargs="*", help="ids of faults, or patterns such as D1* (default: all)")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to try at most (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies to work in (default: one a core)")
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the seeds into the table; one that still finds its fault is kept without a search",
    )
    return parser.parse_args()


def _search(faults: Sequence[PlantedFault], options: argparse.Namespace) -> list[Outcome]:
    outcomes: dict[str, Outcome] = {}
    jobs = min(options.jobs, len(faults))
    with (
        tempfile.TemporaryDirectory(prefix="semel-simulate-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        free: queue.SimpleQueue[Field] = queue.SimpleQueue()
        for number in range(jobs):
            free.put(Field(Path(folder) / str(number)))

        def search(fault: PlantedFault) -> Outcome:
            field = free.get()
            try:
                return _search_one(field, fault, options)
            finally:
                free.put(field)

        for done in as_completed([pool.submit(search, fault) for fault in faults]):
            outcome = done.result()
            outcomes[outcome.fault.id] = outcome
            print(outcome.line(), flush=True)
    return [outcomes[fault.id] for fault in faults]


def _search_one(field: Field, fault: PlantedFault, options: argparse.Namespace) -> Outcome:
    tried, seconds = 0, 0.0
    if fault.unseen and options.record:
        return Outcome(fault, None, "", 0, 0.0)
    try:
        if options.record and fault.seed is not None:
            found = field.find(fault.edits, fault.seed, 1, fault.world)
            tried, seconds = found.tried, found.seconds
            if found.seed is not None and _is_clean(field, found.seed, fault.world):
                kind = fault.finds if fault.finds in found.kinds else found.kinds[0]
                return Outcome(fault, found.seed, kind or "", tried, seconds)
        seed, end = options.first, options.first + options.seeds
        while seed < end:
            found = field.find(fault.edits, seed, end - seed, fault.world)
            tried += found.tried
            seconds += found.seconds
            if found.seed is None:
                break
            if _is_clean(field, found.seed, fault.world):
                return Outcome(fault, found.seed, found.kinds[0], tried, seconds)
            seed = found.seed + 1
    except (DoesNotApplyError, RuntimeError) as error:
        return Outcome(fault, None, "", tried, seconds, str(error))
    return Outcome(fault, None, "", tried, seconds, "not found")


def _is_clean(field: Field, seed: int, world: str) -> bool:
    """Whether a seed finds nothing without a fault: one that does proves nothing."""
    return field.find((), seed, 1, world).seed is None


if __name__ == "__main__":
    sys.exit(main())
