"""Runs the suites that foreign clients publish against a node, and compares with what is known (expected.toml).

    make compat-full LIBRDKAFKA=../librdkafka KAFKA_PYTHON=../kafka-python
    make compat-full CONFLUENT_KAFKA_PYTHON=../confluent-kafka-python SUITE_PYTHON=../venv/bin/python
    make compat-full LIBRDKAFKA=../librdkafka ONLY='0081*'
    make compat-full LIBRDKAFKA=../librdkafka NODES=3

Checkouts are brought along: nothing is fetched or built here. The exit code is 0 where everything is as expected, 1
where something is not, 2 where the run could not be made. Logs, and all results as text and JSON, are in build/compat.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import franz_go
from librdkafka import VARIANTS, LibrdkafkaSuite
from pytest_suites import SUITES, Run
from results import ExpectedList, Result, known_page, summary, table, with_known_page, write

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "compatibility.md"


def main(words: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nodes are stopped
    options = arguments().parse_args(words)
    if options.write_page:
        PAGE.write_text(with_known_page(PAGE.read_text(), known_page(ExpectedList.read())))
        return 0
    expected = ExpectedList.read(nodes=options.nodes)
    out: Path = options.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    versions: dict[str, str] = {}
    results: list[Result] = []

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in options.only or ["*"])

    def report(result: Result) -> None:
        print(table([result]), end="", flush=True)

    try:
        if options.librdkafka:
            suite = LibrdkafkaSuite(
                options.librdkafka, out, expected, options.timeout, options.jars, nodes=options.nodes, full=options.full
            )
            versions["librdkafka"] = suite.version()
            for variant in VARIANTS:
                if variant.name in (options.variant or [variant.name]):
                    results += suite.run(variant, wanted, report)
        for name in franz_go.VARIANTS:
            if options.franz_go and name in (options.variant or [name]):
                go_suite = franz_go.FranzGoSuite(
                    name, options.franz_go, out, expected, options.timeout, nodes=options.nodes, full=options.full
                )
                versions[franz_go.NAME] = go_suite.version()
                results += go_suite.run(wanted, report)
        for pytest_suite in SUITES:
            checkout = getattr(options, pytest_suite.client.replace("-", "_"))
            if checkout and pytest_suite.name in (options.variant or [pytest_suite.name]):
                versions[pytest_suite.client] = pytest_suite.version(checkout)
                run = Run(pytest_suite, checkout, out, options.python, expected, options.timeout, options.nodes)
                results += run.run(wanted, report)
    except (OSError, RuntimeError) as error:
        print(f"the run could not be made: {error}", file=sys.stderr)
        return 2
    if not results:
        print("no test was run: give a checkout (see --help)", file=sys.stderr)
        return 2
    write(results, out, versions)
    print(f"\n{summary(results)}\nresults: {out / 'results.txt'}")
    unexpected = expected.unexpected(results)
    for line in unexpected:
        print(f"unexpected: {line}")
    return 1 if unexpected else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def checkout(path: str) -> Path | None:
        return Path(path).resolve() if path else None

    for name in dict.fromkeys(("librdkafka", franz_go.NAME, *(suite.client for suite in SUITES))):
        parser.add_argument(f"--{name}", type=checkout, metavar="CHECKOUT", help=f"a checkout of {name}")
    parser.add_argument(
        "--python", default=sys.executable, help="runs the suites written in Python; has what they import"
    )
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="tests to run, as in a shell; can be given many times"
    )
    parser.add_argument(
        "--variant",
        action="append",
        choices=[*(each.name for each in (*VARIANTS, *SUITES)), *franz_go.VARIANTS],
        help="which of the ways to run the suites; all without it",
    )
    jars = sorted((ROOT / "build" / "java").glob("[0-9]*.[0-9]*"))
    parser.add_argument(
        "--jars",
        type=checkout,
        default=jars[-1] if jars else None,
        metavar="FOLDER",
        help="Apache Kafka's jars, for a test of librdkafka with a Java producer (make compat-java fetches them)",
    )
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="run against a cluster of so many (1)")
    parser.add_argument("--full", action="store_true", help="librdkafka's and franz-go's tests in full length")
    parser.add_argument("--timeout", type=float, default=180, metavar="SECONDS", help="for one test (180)")
    parser.add_argument("--write-page", action="store_true", help="write the tables of docs/compatibility.md, and end")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "compat", help="where logs and results go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
