"""`semel consume`: print records."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import semel
from semel.cli import standard_streams
from semel.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    Bootstrap,
    ExitCode,
    command_app,
    command_here,
    counted,
    examples,
    fail,
    fails_well,
    open_admin,
    parse_duration,
)
from semel.cli.moments import MOMENT, MOMENT_FORMS, parse_moment
from semel.cli.reading_range import TAIL_MAX, Until, last_records
from semel.cli.record_format import FORMATS_METAVAR, TEMPLATE_HELP, Formatter, formatter
from semel.cli.signals import finishing_on_signals
from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.wording import partition_argument

if TYPE_CHECKING:
    from semel.protocol.api.topics import TopicDescription

app = command_app()

POLL_S = 0.5
POLL_RECORDS = 500


class Isolation(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class _Range:
    """What is read of the partitions."""

    partition: int | None
    from_beginning: bool
    offset: int | None
    tail: int | None
    since_ms: int | None
    until_ms: int | None


@app.command(
    epilog=examples(
        "semel consume orders --from-beginning",
        "semel consume orders --tail 10 --format '%d %p %o %k %v\\n'",
        "semel consume orders --since 10m --until 5m --json",
        "semel consume orders --group audit --format json",
        "semel consume orders --partition 0 --offset 1200 --max 10",
        "semel consume orders --from-beginning --timeout 2s > orders.txt",
    )
)
@fails_well
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="What to read: one topic or several.")],
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Share the partitions with the other members of this group, begin at its committed offsets, and "
            "commit what was printed.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Begin with the first record (with --group, where it has committed nothing). Default: only records "
            "that arrive from now on.",
        ),
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            min=1, max=TAIL_MAX, metavar="N", help="Begin with the last N records of all partitions together."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar=MOMENT, help=f"Begin with the records of this time. {MOMENT_FORMS}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar=MOMENT, help="End before the records of this time. As --since.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="NUMBER", help="Read only this partition.")] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="Begin at this offset; needs --partition.")
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option(help="read_uncommitted also shows records of open and aborted transactions.")
    ] = Isolation.READ_COMMITTED,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar=FORMATS_METAVAR,
            show_default="value",
            help=f"value: one on each line. keyed: key, tab, value. json: an object on each line. {TEMPLATE_HELP}",
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Skip batches that can't be read, with a warning for each.")
    ] = False,
    max_records: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="End after this many records.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar=DURATION, help=f"End when no record arrives for this long. {DURATION_HELP}")
    ] = None,
    rack: Annotated[
        str,
        typer.Option(
            metavar="RACK",
            help="Where this reader is: read from a replica in this rack (broker.rack of its node), where one is in "
            "sync, and else from the leader. Needs replica.selector.class on the nodes.",
            show_default=False,
        ),
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Print records as they arrive, until interrupted. With a group, what was printed is committed."""
    now_ms = int(time.time() * 1000)
    wanted = _Range(
        partition,
        from_beginning,
        offset,
        tail,
        None if since is None else parse_moment(since, "--since", now_ms),
        None if until is None else parse_moment(until, "--until", now_ms),
    )
    _check(wanted, group)
    if standard_streams.is_stdout_closed:
        raise UsageError("standard output is closed, so nothing can be printed: redirect it")
    timeout_s = None if timeout is None else parse_duration(timeout, "--timeout")
    if as_json and format_ not in (None, "json"):
        raise UsageError(f"--json is short for --format json: leave out --json, or --format {format_}")
    output = formatter("json" if as_json else "value" if format_ is None else format_)
    client = semel.Consumer(
        bootstrap,
        group=group,
        isolation=isolation.value,
        offset_reset="error" if offset is not None else "earliest" if from_beginning else "latest",
        on_unreadable_batch="skip" if skip_unreadable else "raise",
        session_timeout_ms=10_000,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        rack=rack,
    )
    admin = open_admin(bootstrap)
    with finishing_on_signals(), client as consumer:
        with admin:  # says at once that there is no node, or no such topic
            found = [admin.topic(name) for name in topics]
        printer = _Printer(consumer, output, max_records, timeout_s, commits=group is not None)
        until_end = None
        try:
            if group is not None:
                consumer.subscribe(topics)
                printer.say(f"waiting for records of {_named(found)} as a member of group {group}")
            else:
                until_end = _begin(consumer, found, wanted, printer, bootstrap)
            printer.print_all(until_end)
        except semel.UnreadableBatchError as error:
            raise FatalError(f"{error.message}; --skip-unreadable skips it", error.code) from error


def _check(wanted: _Range, group: str | None) -> None:
    """Raises `UsageError` for options that contradict each other."""
    begins = {
        "--from-beginning": wanted.from_beginning,
        "--offset": wanted.offset is not None,
        "--tail": wanted.tail is not None,
        "--since": wanted.since_ms is not None,
    }
    given = [option for option, is_given in begins.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are different places to begin: give one of them")
    if wanted.offset is not None and wanted.partition is None:
        raise UsageError("--offset needs --partition: offsets are numbered in each partition on its own")
    if group is not None:
        if wanted.partition is not None:
            raise UsageError("--partition reads one partition on its own; a group shares them out: give one of the two")
        if given and not wanted.from_beginning:
            raise UsageError(
                f"{given[0]} does not go with --group, which begins at its committed offsets: leave out one of them, "
                f"or move the group with `semel group reset-offsets {group} --to`"
            )
        if wanted.until_ms is not None:
            raise UsageError("--until does not go with --group: leave out one of them, or end by --max or --timeout")
    if wanted.until_ms is not None:
        if wanted.tail is not None:
            raise UsageError("--tail begins at the end, and --until ends before it: give --since with --until")
        if not given and wanted.until_ms <= time.time() * 1000:
            raise UsageError(
                "--until is past, and reading begins at the end: say where to begin, with --since or --from-beginning"
            )
        if wanted.since_ms is not None and wanted.since_ms >= wanted.until_ms:
            raise UsageError("--since is not before --until: nothing is between them")


def _begin(
    consumer: semel.Consumer, topics: list[TopicDescription], wanted: _Range, printer: _Printer, bootstrap: str
) -> Until | None:
    """Assign the partitions, go to where reading begins, and return where it ends."""
    partition = wanted.partition
    tps = [
        TopicPartition(topic.name, place.partition)
        for topic in topics
        for place in topic.partitions
        if partition is None or place.partition == partition
    ]
    if not tps:
        shown = ", ".join(f"{topic.name} has 0 to {len(topic.partitions) - 1}" for topic in topics)
        raise UsageError(f"there is no partition {partition}: {shown}")
    consumer.assign(tps)
    what = f"{_named(topics)} ({counted(len(tps), 'partition')}"
    if wanted.offset is not None:
        _check_offset(consumer, tps, wanted.offset, bootstrap)
        for tp in tps:
            consumer.seek(tp, wanted.offset)
    elif wanted.tail is not None:
        printer.print_records(last_records(consumer, tps, wanted.tail))
        printer.say(f"waiting for more records of {what})")
    elif wanted.since_ms is not None:
        consumer.seek_to_timestamp(wanted.since_ms)
    elif not wanted.from_beginning:
        printer.say(f"waiting for records of {what}, from the end); --from-beginning reads all")
    return None if wanted.until_ms is None else Until(consumer, tps, wanted.until_ms)


def _check_offset(consumer: semel.Consumer, tps: Sequence[TopicPartition], offset: int, bootstrap: str) -> None:
    """Say at once which offsets there are, where there is no such one. That of the next record is one."""
    starts, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
    for tp in tps:
        if starts[tp] <= offset <= ends[tp]:
            continue
        if starts[tp] == ends[tp]:
            has = f"has no records; the next one gets offset {ends[tp]}"
        else:
            has = f"has offsets {starts[tp]} to {ends[tp] - 1}"
        describe = command_here(f"semel topic describe {tp.topic}", bootstrap)
        where = partition_argument(tp)
        raise fail(f"offset {offset} is not in {where}: it {has}. `{describe}` shows them", ExitCode.REFUSED)


def _named(topics: Sequence[TopicDescription]) -> str:
    return ", ".join(topic.name for topic in topics)


class _Printer:
    """Prints what a consumer reads, and says on a terminal where it stands."""

    def __init__(
        self,
        consumer: semel.Consumer,
        output: Formatter,
        max_records: int | None,
        timeout_s: float | None,
        *,
        commits: bool,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._max_records = max_records
        self._timeout_s = timeout_s
        self._commits = commits
        self._printed = 0
        self._says_end = sys.stderr.isatty()
        self._out = sys.stdout.buffer

    def say(self, text: str) -> None:
        """Say what it waits for to somebody who looks; then there is no need to say it again at the end."""
        if sys.stderr.isatty():
            print(text, file=sys.stderr)
            self._says_end = False

    def print_records(self, records: Sequence[semel.Record]) -> None:
        left = None if self._max_records is None else self._max_records - self._printed
        for record in records[:left]:
            self._out.write(self._output(record))
            self._printed += 1
        self._out.flush()

    def print_all(self, until: Until | None) -> None:
        """Print record after record, to the end that was asked for."""
        heard_at = time.monotonic()
        while self._max_records is None or self._printed < self._max_records:
            if until is not None and until.is_reached():
                return
            left = POLL_RECORDS if self._max_records is None else self._max_records - self._printed
            batch = self._consumer.poll(POLL_S, min(POLL_RECORDS, left))
            if batch is not None:
                heard_at = time.monotonic()
                self.print_records(list(batch) if until is None else until.admitted(batch))
                if self._commits:
                    self._consumer.commit()
            elif self._timeout_s is not None and time.monotonic() - heard_at >= self._timeout_s:
                return
            elif self._says_end:
                self._say_at_end()

    def _say_at_end(self) -> None:
        """Say once, to somebody who looks, that all there was is printed."""
        assigned = sorted(self._consumer.assignment())
        positions = {tp: self._consumer.position(tp) for tp in assigned}
        ends = self._consumer.end_offsets(assigned)
        if assigned and all(place is not None and place >= ends[tp] for tp, place in positions.items()):
            self.say(f"at the end after {counted(self._printed, 'record')}; waiting for more (Ctrl-C ends)")
