"""`python -m simulation`: run seeds, and tell what fails as a story."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from simulation.command_line import INTERRUPTED, at_least, counted, say, terminated_as_interrupted
from simulation.runs import ONE_NODE, WORLDS
from simulation.scenario import Verdict
from simulation.shrinking import shrink
from simulation.simulated_code import PRODUCT, SIMULATION, code_digest
from simulation.workers import verdicts

STORY_LINES = 60
MOST_ABOUT = 20
"""How many lines at most say what was tried of which something is wrong."""
FAULT = "FAULT "
"""How the line of a fault begins."""
MOST_WORKERS = 256
PATIENCE_S = 600
CLIENTS_WHOLE = 4
"""Of so many clients all last questions and answers are printed; of more, only of those that an anomaly names."""
OF_OTHERS = 2


def main() -> int:
    arguments = _parse()
    if not os.environ.get("PYTHONHASHSEED", "").isdecimal():
        # A set of texts has an order of its own in each process, unless it is told one.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-P", "-m", "simulation", *sys.argv[1:]])
    try:
        with terminated_as_interrupted():
            if arguments.seed is not None:
                return _one(arguments)
            first = arguments.first or 0
            return _many(range(first, first + (arguments.seeds or 100)), arguments)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # who read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=at_least(1), help="how many seeds to run (default: 100)")
    parser.add_argument("--first", type=at_least(0), help="the first of them (default: 0)")
    parser.add_argument("--seed", type=at_least(0), help="run this one seed, shorten its faults, and tell its story")
    parser.add_argument("--whole", action="store_true", help="with --seed: do not shorten its faults")
    parser.add_argument(
        "--world",
        choices=WORLDS,
        default=ONE_NODE,
        help="the kind of worlds; all but the first have three nodes",
    )
    parser.add_argument("--workers", type=at_least(1), help=f"processes, {MOST_WORKERS} at most (default: one a core)")
    parser.add_argument("--stop-at", type=at_least(1), help="stop after so many seeds that failed (default: 5)")
    parser.add_argument(
        "--patience",
        type=at_least(1),
        help=f"for how many seconds a seed may run before it counts as failed (default: {PATIENCE_S})",
    )
    arguments = parser.parse_args()
    of_many = [
        f"--{name.replace('_', '-')}"
        for name in ("seeds", "first", "workers", "stop_at")
        if getattr(arguments, name) is not None
    ]
    if arguments.seed is not None and of_many:
        parser.error(f"--seed runs one seed in one process: leave {', '.join(of_many)} out, or leave it out")
    if arguments.seed is None and arguments.whole:
        parser.error("--whole is about the story of one seed: add --seed")
    if (arguments.workers or 1) > MOST_WORKERS:
        parser.error(f"--workers {arguments.workers} is more than {MOST_WORKERS}")
    return arguments


def _one(arguments: argparse.Namespace) -> int:
    seed, world = arguments.seed, arguments.world
    (verdict,) = verdicts(range(seed, seed + 1), 1, world, arguments.patience or PATIENCE_S)
    if verdict.is_clean:
        print(f"seed {seed}: clean, {verdict.seconds:.1f} virtual seconds, {verdict.steps} steps, {verdict.digest:08x}")
        for fault in verdict.plan:
            print(f"  {fault}")
        return 0
    if not arguments.whole and verdict.clients:
        verdict = shrink(verdict, lambda what: say(f"seed {seed}: {what}"), world=world)
    _tell(verdict)
    return 1


def _tell(verdict: Verdict) -> None:
    without = f", without {', '.join(verdict.without)}" if verdict.without else ""
    print(f"seed {verdict.seed} fails, with {counted(len(verdict.plan), 'fault')}{without}:")
    for line in story_lines(verdict.story):
        print(f"  {line}")
    for client, asked in last_words(verdict):
        print(f"  {client}, at its end:")
        for at, what in asked:
            print(f"  {at:9.3f} s    {what[:200]}")
    for line in verdict.about[:MOST_ABOUT]:
        print(f"  {line[:300]}")
    for anomaly in verdict.anomalies[:10]:
        print(f"  => {anomaly}")


def last_words(verdict: Verdict) -> list[tuple[str, list[tuple[float, str]]]]:
    """Return what clients asked and were answered last: first who is named in an anomaly, and of many others little."""
    wrong = " ".join(f"{anomaly}" for anomaly in verdict.anomalies)
    named = [client for client in verdict.asked if client in wrong]
    others = [client for client in verdict.asked if client not in named]
    is_short = len(verdict.asked) > CLIENTS_WHOLE
    return [
        *((client, verdict.asked[client]) for client in named),
        *((client, verdict.asked[client][-OF_OTHERS:] if is_short else verdict.asked[client]) for client in others),
    ]


def story_lines(story: Sequence[tuple[float, str]]) -> list[str]:
    """Return a story's lines. Of a long one: the beginning, the end, and all faults between, in which its cause is."""
    last_of_beginning, first_of_end = STORY_LINES // 2, len(story) - STORY_LINES // 2
    lines: list[str] = []
    left_out = 0
    for number, (at, what) in enumerate(story):
        if last_of_beginning <= number < first_of_end and not what.startswith(FAULT):
            left_out += 1
            continue
        if left_out:
            lines.append(f"{'...':>12} {left_out} lines")
            left_out = 0
        lines.append(f"{at:9.3f} s  {what[:300]}")
    return lines


def _many(seeds: range, arguments: argparse.Namespace) -> int:
    begun = last = time.monotonic()
    done, virtual_s, steps, failed = 0, 0.0, 0, []
    is_interrupted = False
    try:
        workers, patience_s = arguments.workers or os.cpu_count() or 1, arguments.patience or PATIENCE_S
        for verdict in verdicts(seeds, workers, arguments.world, patience_s):
            done += 1
            virtual_s += verdict.seconds
            steps += verdict.steps
            if not verdict.is_clean:
                failed.append(verdict.seed)
                print(f"seed {verdict.seed} fails: {verdict.anomalies[0]}"[:600], flush=True)
                if len(failed) >= (arguments.stop_at or 5):
                    break
            if time.monotonic() - last > 10.0:
                last = time.monotonic()
                say(f"{done} of {len(seeds)} seeds, {len(failed)} failed, {last - begun:.0f} s")
    except KeyboardInterrupt:
        is_interrupted = True
        say("interrupted; what was done until now:")
    real_s = time.monotonic() - begun
    print(
        f"{done} seeds, {len(failed)} failed; {virtual_s / 3600:.2f} virtual hours, {steps:,} steps in {real_s:.0f} s "
        f"({virtual_s / real_s:.0f} virtual seconds a second)"
    )
    print(f"product {code_digest(PRODUCT)}, worlds {code_digest(SIMULATION)}: seeds of the same two count together")
    more = "" if arguments.world == ONE_NODE else f" WORLD={arguments.world}"
    more += "" if arguments.patience is None else f" PATIENCE={arguments.patience}"
    for seed in failed:
        print(f"  make simulate SEED={seed}{more}")
    return INTERRUPTED if is_interrupted else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
