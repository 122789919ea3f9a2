"""Makes one page of plots, bench/RESULTS.html, from what runs of the benches wrote.

    python -P bench/plots.py                                        of what there is in bench/out
    python -P bench/plots.py bench/out/against_kafka.json --out build/page.html

It plots against_kafka, cluster and other_brokers: for each row beside Apache Kafka the ratio, on a logarithmic scale
with a line at 1, and the servers' CPU for a unit of work; for other brokers their figures side by side. The page is one
file that asks for nothing else, is made for a phone too, and has a light and a dark side. It names the machine, the
date and the command of each run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Tests import this module: what they have of the same name as a bench stays first.
sys.path.append(str(Path(__file__).resolve().parent))

from harness import OUT, ROOT
from plotted.page import TITLES, page
from plotted.runs import RunError, read_run

PAGE = ROOT / "bench" / "RESULTS.html"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="FILE", help="JSON of a bench; default: all in bench/out")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page (default bench/RESULTS.html)")
    arguments = parser.parse_args(words)
    paths = arguments.runs or [path for name in TITLES if (path := OUT / f"{name}.json").exists()]
    if not paths:
        raise SystemExit(f'there is nothing to plot in {OUT}; run `make bench BENCH="{" ".join(TITLES)}"` first')
    try:
        text = page([read_run(path) for path in paths])
    except RunError as error:
        raise SystemExit(str(error)) from None
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(text)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
