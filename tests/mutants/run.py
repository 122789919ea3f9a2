"""Plants the kept faults one at a time and runs the tests that must notice each: `make mutants`.

It works in copies of the checkout. The exit code is 1 where a fault lives that the list does not expect to, where one
no longer applies, and where the tests of one fail without it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.edits import DoesNotApplyError, Sources, apply
from mutants.kept_list import BadListError, Fault, chosen, read_list
from mutants.outcomes import summary
from mutants.running import Runner
from mutants.sample_seed import sample_seed

CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        faults = read_list(options.checkout / "tests" / "mutants" / "faults")
        faults = chosen(faults, options.faults) if options.faults else faults
    except BadListError as error:
        print(error, file=sys.stderr)
        return 2
    if options.tests:
        faults = [replace(fault, tests=tuple(options.tests)) for fault in faults]
    if options.list:
        for fault in faults:
            print(
                f"{fault.id:5} {' '.join(fault.rules):9} {fault.says}"
                + (f" [lives: {fault.lives}]" * bool(fault.lives))
            )
        return 0
    if options.show:
        return _show(faults, options.checkout)
    if options.sample:
        seed = options.seed or sample_seed(options.checkout)
        must = [fault for fault in faults if fault.lives is None]
        faults = random.Random(seed).sample(must, min(options.sample, len(must)))
        print(f"{len(faults)} of {len(must)} faults, SEED={seed}")
    return _run(faults, options)


def _run(faults: list[Fault], options: argparse.Namespace) -> int:
    begin = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with Runner(options.checkout, options.jobs, timeout_s=options.timeout) as runner:
        clean = runner.clean(faults)
        names = {test for fault in faults for test in fault.tests}
        print(f"{len(names)} tests without a fault: {time.monotonic() - begin:.0f} s", flush=True)
        for name in sorted(names):
            if (why := clean.troubles.get(name)) is not None:
                print(f"  not a judge: {name}: {why}", flush=True)
        outcomes = runner.plant(faults, clean, lambda outcome: print(outcome.line(), flush=True))
    if options.json:
        options.json.write_text(json.dumps([outcome.as_json() for outcome in outcomes], indent=1) + "\n")
    print(f"\n{summary(outcomes)}\n{time.monotonic() - begin:.0f} s")
    return int(any(outcome.is_wrong for outcome in outcomes))


def _stop(number: int, _: object) -> None:
    """Leave by way of what cleans up, also where the shell has the interruption of a background job ignored."""
    sys.exit(128 + number)


def _show(faults: Sequence[Fault], checkout: Path) -> int:
    sources = Sources(checkout / "src" / "semel")
    code = 0
    for fault in faults:
        print(f"{fault.id}: {fault.says}")
        try:
            for path, text in apply(fault.edits, sources).items():
                name = str(path.relative_to(sources.package))
                before = sources.text(path).splitlines()
                print("\n".join(difflib.unified_diff(before, text.splitlines(), name, name, lineterm="", n=2)))
        except DoesNotApplyError as error:
            print(f"no longer applies: {error}")
            code = 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    parser.add_argument("faults", nargs="*", help="ids of faults, patterns such as 'T1*', or areas; all without any")
    parser.add_argument("--list", action="store_true", help="print the faults, and plant none")
    parser.add_argument("--show", action="store_true", help="print what each edit changes, and plant none")
    parser.add_argument(
        "--tests", nargs="+", metavar="ID", help="ask these in place of the list's: ids, or files of tests"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn by the seed")
    parser.add_argument("--seed", help="what draws the sample (default: the commit)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time (default: the cores)")
    parser.add_argument("--timeout", type=int, default=30, metavar="S", help="what counts as hanging (default: 30 s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
