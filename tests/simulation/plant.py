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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from mutants.edits import DoesNotApplyError
from mutants.kept_list import BadListError

from simulation.command_line import INTERRUPTED, at_least, say, terminated_as_interrupted
from simulation.planted_table import FIRST_SEEDS, TABLE, PlantedFault, chosen, read_table, recorded
from simulation.planting import Field

NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault.

    trouble: why there is no seed
    shown:   see `PlantedFault`
    """

    fault: PlantedFault
    seed: int | None
    kind: str
    tried: int
    seconds: float
    trouble: str = ""
    shown: int = 0

    def line(self) -> str:
        fault = self.fault
        found = f"seed {self.seed:4}" if self.seed is not None else "-" * 9
        text = f"{fault.id:8} {found}  {self.tried:4} tried  {self.seconds:5.0f} s  {self.kind:12}  {fault.says}"
        if self.seed is None and fault.unseen:
            return f"{text} [unseen: {fault.unseen}]"
        if self.seed is None and fault.sought and self.trouble == NOT_FOUND:
            return f"{text} [not found yet: {fault.sought}]"
        return f"{text} [{self.trouble}]" if self.trouble else text

    @property
    def is_wrong(self) -> bool:
        return self.seed is None and not self.fault.unseen and not self.fault.sought


def main() -> int:
    options = _parse()
    try:
        faults = chosen(read_table().faults, options.faults)
    except BadListError as error:
        print(error, file=sys.stderr)
        return 2
    begun = time.monotonic()
    outcomes: list[Outcome] = []
    is_interrupted = False
    try:
        with terminated_as_interrupted():
            for outcome in _search(faults, options):
                outcomes.append(outcome)
                print(outcome.line(), flush=True)
                if options.record and outcome.seed is not None:
                    found = {outcome.fault.id: (outcome.seed, outcome.kind, outcome.shown)}
                    TABLE.write_text(recorded(TABLE.read_text(encoding="utf-8"), found), encoding="utf-8")
    except KeyboardInterrupt:
        is_interrupted = True
        say("interrupted; what was found until now:")
    ended = {one.fault.id: one for one in outcomes}
    in_order = [ended[fault.id] for fault in faults if fault.id in ended]
    tried = sum(one.tried for one in in_order)
    print(
        f"\n{len(in_order)} faults, {sum(one.seed is not None for one in in_order)} found with {tried} seeds "
        f"in {time.monotonic() - begun:.0f} s"
    )
    wrong = [one.fault.id for one in in_order if one.is_wrong]
    if wrong:
        print(f"not found: {' '.join(wrong)}")
    sought = [one.fault.id for one in in_order if one.seed is None and one.fault.sought]
    if sought:
        print(f"not found by any world yet, as the table says: {' '.join(sought)}")
    return INTERRUPTED if is_interrupted else 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulate-faults", description=__doc__)
    parser.add_argument("faults", nargs="*", help="ids of faults, or patterns such as D1* (default: all)")
    parser.add_argument(
        "--seeds", type=at_least(1), default=1000, help="how many seeds to try at most (default: %(default)s)"
    )
    parser.add_argument("--first", type=at_least(0), default=0, help="the first of them (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=at_least(1), default=os.cpu_count() or 1, help="copies to work in (default: one a core)"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the seeds into the table, and how many of the first find each; a seed that still does is kept",
    )
    return parser.parse_args()


def _search(faults: Sequence[PlantedFault], options: argparse.Namespace) -> Iterator[Outcome]:
    """Yield what came of each fault, in the order in which they end."""
    jobs = min(options.jobs, len(faults))
    with tempfile.TemporaryDirectory(prefix="semel-simulate-", ignore_cleanup_errors=True) as folder:
        fields = [Field(Path(folder) / str(number)) for number in range(jobs)]
        free: queue.SimpleQueue[Field] = queue.SimpleQueue()
        for field in fields:
            free.put(field)

        def search(fault: PlantedFault) -> Outcome:
            field = free.get()
            try:
                return _search_one(field, fault, options)
            finally:
                free.put(field)

        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed([pool.submit(search, fault) for fault in faults]):
                    yield done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for field in fields:
                    field.stop()


def _search_one(field: Field, fault: PlantedFault, options: argparse.Namespace) -> Outcome:
    tried, seconds = 0, 0.0
    if fault.sought and not options.faults:
        return Outcome(fault, None, "", 0, 0.0, NOT_FOUND)
    if fault.unseen and options.record:
        return Outcome(fault, None, "", 0, 0.0)
    try:
        if options.record and fault.seed is not None:
            found = field.find(fault.edits, fault.seed, 1, fault.world)
            tried, seconds = found.tried, found.seconds
            if found.seed is not None and _is_clean(field, found.seed, fault.world):
                kind = fault.finds if fault.finds in found.kinds else found.kinds[0]
                return _counted(field, Outcome(fault, found.seed, kind or "", tried, seconds))
        seed, end = options.first, options.first + options.seeds
        while seed < end:
            found = field.find(fault.edits, seed, end - seed, fault.world)
            tried += found.tried
            seconds += found.seconds
            if found.seed is None:
                break
            if _is_clean(field, found.seed, fault.world):
                outcome = Outcome(fault, found.seed, found.kinds[0], tried, seconds)
                return _counted(field, outcome) if options.record else outcome
            seed = found.seed + 1
    except (DoesNotApplyError, RuntimeError) as error:
        return Outcome(fault, None, "", tried, seconds, str(error))
    return Outcome(fault, None, "", tried, seconds, NOT_FOUND)


def _counted(field: Field, outcome: Outcome) -> Outcome:
    """Note how many of the first seeds find a fault."""
    fault, shown, tried, seconds, seed = outcome.fault, 0, outcome.tried, outcome.seconds, 0
    while seed < FIRST_SEEDS:
        found = field.find(fault.edits, seed, FIRST_SEEDS - seed, fault.world)
        tried += found.tried
        seconds += found.seconds
        if found.seed is None:
            break
        shown += 1
        seed = found.seed + 1
    return replace(outcome, shown=shown, tried=tried, seconds=seconds)


def _is_clean(field: Field, seed: int, world: str) -> bool:
    """Whether a seed finds nothing without a fault: one that does proves nothing."""
    return field.find((), seed, 1, world).seed is None


if __name__ == "__main__":
    sys.exit(main())
