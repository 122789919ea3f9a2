"""Where `semel consume` begins and ends, how it prints, and what it says to somebody at a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import semel
from semel.cli.common import ExitCode
from semel.cli.main import app
from semel.cli.moments import parse_moment
from semel.cli.reading_range import last_records
from semel.protocol.errors import UsageError
from semel.testing import Broker

Run = Callable[..., Result]
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as node:
        yield node.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, env={"SEMEL_BOOTSTRAP": bootstrap})

    return run


@pytest.fixture(scope="module")
def spread(bootstrap: str) -> str:
    """A topic of three partitions with the records 0 to 8, one each hour and in turns, the last one six hours ago."""
    now_ms = int(time.time() * 1000)
    with semel.Admin(bootstrap) as admin, semel.Producer(bootstrap) as producer:
        admin.create_topic("spread", partitions=3)
        for number in range(9):
            at = now_ms - (14 - number) * HOUR_MS
            producer.send("spread", str(number), partition=number % 3, timestamp_ms=at)
    return "spread"


def test_where_the_reader_is_is_told_to_the_node(run: Run, spread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the node makes of it: tests/unit/sdk/consumer/test_consumer_nearest.py."""
    told: list[object] = []

    class Consumer(semel.Consumer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            told.append(options.get("rack"))
            super().__init__(*arguments, **options)

    monkeypatch.setattr(semel, "Consumer", Consumer)
    for arguments in (["--rack", "zone-a"], []):
        assert run("consume", spread, "--from-beginning", "--max", "1", *arguments).exit_code == 0
    assert told == ["zone-a", ""]


# begin and end


@pytest.mark.parametrize(("count", "expected"), [(1, "8"), (4, "5678"), (9, "012345678"), (500, "012345678")])
def test_tail_begins_with_the_last_records_of_all_partitions_together(
    run: Run, spread: str, count: int, expected: str
) -> None:
    got = run("consume", spread, "--tail", str(count), "--max", str(len(expected)), "--format", "%v")
    assert got.stdout == expected


def test_tail_continues_with_what_comes_after_it(run: Run, bootstrap: str) -> None:
    run("topic", "create", "goes-on", "--partitions", "2")
    run("produce", "goes-on", stdin="a\nb\nc\n")
    with semel.Consumer(bootstrap) as consumer:
        tps = [semel.TopicPartition("goes-on", number) for number in (0, 1)]
        consumer.assign(tps)
        assert [record.value for record in last_records(consumer, tps, 2)] == [b"b", b"c"]
        run("produce", "goes-on", stdin="d\n")
        batch = consumer.poll(60)
        assert batch is not None
        assert [record.value for record in batch] == [b"d"]


def test_tail_counts_records_and_not_the_offsets_of_markers_and_aborted_records(run: Run, bootstrap: str) -> None:
    run("topic", "create", "gaps", "--partitions", "1")
    with semel.Producer(bootstrap, transactional_id="gaps") as producer:
        for number in range(4):
            with producer.transaction():
                producer.send("gaps", str(number))
            producer.begin_transaction()
            for _ in range(20):
                producer.send("gaps", "never")
            producer.flush()
            producer.abort_transaction()
    got = run("consume", "gaps", "--tail", "3", "--max", "3", "--format", "%v,")
    assert got.stdout == "1,2,3,"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--since", "9h30m"), None),
        (("--since", "8.5h", "--until", "0s"), "678"),
        (("--from-beginning", "--until", "11.5h"), "012"),
        (("--since", "12.5h", "--until", "10.5h"), "23"),
        (("--since", "1h", "--until", "0s"), ""),
        (("--since", "12.5h", "--until", "10.5h", "--partition", "2"), "2"),
    ],
)
def test_since_and_until_bound_what_is_read_by_time(
    run: Run, spread: str, options: tuple[str, ...], expected: str | None
) -> None:
    got = run("consume", spread, *options, "--format", "%v")
    if expected is None:
        assert got.exit_code == ExitCode.USAGE
        assert "--since takes 10m" in got.stderr
    else:
        assert got.exit_code == 0, got.stderr
        assert sorted(got.stdout) == list(expected)


def test_until_a_time_that_is_still_to_come_ends_at_it(run: Run, bootstrap: str) -> None:
    """Also behind markers of transactions, which are no records."""
    run("topic", "create", "coming", "--partitions", "2")
    run("produce", "coming", "--partition", "0", "--transaction", "t", stdin="early\n")
    late = int(time.time() * 1000) + HOUR_MS
    run("produce", "coming", "--format", "json", stdin=json.dumps({"value": "late", "timestamp_ms": late}))
    until = str(int(time.time() * 1000) + 1_500)
    got = run("consume", "coming", "--from-beginning", "--until", until)
    assert (got.exit_code, got.stdout) == (0, "early\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", NOW_MS - 600_000),
        ("500ms", NOW_MS - 500),
        ("1.5 H", NOW_MS - 5_400_000),
        ("36500d", 0),
        ("1699999990000", 1_699_999_990_000),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-15T00:13:20+02:00", NOW_MS),
        ("1969-12-31T23:59:59.999+00:00", 0),
        ("0001-01-01", 0),
    ],
)
def test_a_time_is_a_duration_back_or_iso_8601_or_milliseconds(text: str, expected: int) -> None:
    assert parse_moment(text, "--since", NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("17", "for 17 seconds ago write 17s"),
        ("1699999990", "for 1699999990 seconds ago write 1699999990s; a time in milliseconds since 1970 has 13 digits"),
        ("soon", "an ISO 8601 time such as"),
        ("", "an ISO 8601 time such as"),
        ("1h30m", "an ISO 8601 time such as"),
        ("10 weeks", "takes a duration such as"),
        ("-5m", "an ISO 8601 time such as"),
    ],
)
def test_what_is_no_time_is_refused_with_what_is_one(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_moment(text, "--since", NOW_MS)
    assert refused.value.message.startswith("--since")
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tail", "1", "--from-beginning"), "--from-beginning and --tail are different places to begin"),
        (("--tail", "1", "--since", "1m"), "give one of them"),
        (("--offset", "1", "--partition", "0", "--since", "1m"), "--offset and --since"),
        (("--tail", "1", "--group", "g"), "`semel group reset-offsets g --to`"),
        (("--since", "1m", "--group", "g"), "begins at its committed offsets"),
        (("--until", "1m", "--group", "g"), "--max or --timeout"),
        (("--tail", "1", "--until", "1m"), "give --since with --until"),
        (("--since", "1m", "--until", "1h"), "--since is not before --until"),
        (("--format", "value", "--json"), "--json is short for --format json"),
        (("--partition", "7"), "spread has 0 to 2"),
    ],
)
def test_options_that_contradict_each_other_are_refused_with_the_next_step(
    run: Run, spread: str, options: tuple[str, ...], said: str
) -> None:
    got = run("consume", spread, *options)
    assert (got.exit_code, got.stdout) == (ExitCode.USAGE, "")
    assert said in got.stderr


def test_an_offset_that_is_not_there_is_refused_with_those_that_are(run: Run, spread: str) -> None:
    got = run("consume", spread, "--partition", "1", "--offset", "999")
    assert got.exit_code == ExitCode.REFUSED
    assert "offset 999 is not in spread:1: it has offsets 0 to 2" in got.stderr
    run("topic", "create", "nothing", "--partitions", "1")
    assert "the next one gets offset 0" in run("consume", "nothing", "--partition", "0", "--offset", "1").stderr
    at_end = run("consume", "nothing", "--partition", "0", "--offset", "0", "--timeout", "0")
    assert at_end.exit_code == 0


# how it prints


def test_a_template_prints_each_field_of_a_record(run: Run) -> None:
    run("topic", "create", "fields", "--partitions", "1")
    full = {"key": "k", "value": "v1", "headers": [["a", "1"], ["b", None]], "timestamp_ms": NOW_MS}
    run("produce", "fields", "--format", "json", stdin=f"{json.dumps(full)}\n{json.dumps({'value': None})}\n")
    template = r"%t %p %o %T %d %k %K %v %s %S %h %% \x41\t\\|\n"
    got = run("consume", "fields", "--from-beginning", "--max", "2", "--format", template).stdout.splitlines()
    assert got[0] == f"fields 0 0 {NOW_MS} 2023-11-14T22:13:20.000Z k 1 v1 v1 2 a=1,b=NULL % A\t\\|"
    assert got[1].startswith("fields 0 1 ")
    assert got[1].endswith("  -1   -1  % A\t\\|")


def test_a_template_leaves_bytes_as_they_are(run: Run) -> None:
    run("topic", "create", "raw", "--partitions", "1")
    run("produce", "raw", "--format", "json", stdin='{"value_base64": "/wA="}\n')
    got = run("consume", "raw", "--from-beginning", "--max", "1", "--format", r"\xff%vä")
    assert got.stdout_bytes == b"\xff\xff\x00\xc3\xa4"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("%q", "%q is not known. There are %t topic, %p partition, %o offset"),
        ("%v %", "a % at its end"),
        (r"%v\q", r"\q is not known. There are \n"),
        (r"%v\x4", r"\x is not known"),
        ("jsno", "--format takes value, keyed, json, or a template"),
    ],
)
def test_an_unknown_format_is_refused_with_those_there_are(run: Run, spread: str, template: str, said: str) -> None:
    got = run("consume", spread, "--format", template)
    assert (got.exit_code, got.stdout) == (ExitCode.USAGE, "")
    assert said in got.stderr


def test_json_is_one_switch_with_two_names(run: Run, spread: str) -> None:
    one, other, both = (
        run("consume", spread, "--tail", "1", "--max", "1", *options).stdout
        for options in (("--json",), ("--format", "json"), ("--format", "json", "--json"))
    )
    assert json.loads(one)["value"] == "8"
    assert one == other == both


# what it says to somebody at a terminal


def told_at_a_terminal(bootstrap: str, *arguments: str, until: str) -> str:
    """What a command says on a terminal, up to a text."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "semel.cli", *arguments]
    with subprocess.Popen(
        command,
        env={**os.environ, "SEMEL_BOOTSTRAP": bootstrap},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        told = b""
        try:
            while until.encode() not in told.replace(b"\r\n", b"\n"):
                told += os.read(ours, 4096)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == ExitCode.INTERRUPTED
            os.close(ours)
    return told.decode().replace("\r\n", "\n")


def test_a_terminal_is_told_what_is_waited_for_and_how_to_read_all(bootstrap: str, spread: str) -> None:
    told = told_at_a_terminal(bootstrap, "consume", spread, until="all\n")
    assert told == "waiting for records of spread (3 partitions, from the end); --from-beginning reads all\n"


def test_a_terminal_is_told_that_the_end_is_reached(bootstrap: str, spread: str) -> None:
    told = told_at_a_terminal(bootstrap, "consume", spread, "--from-beginning", until="ends)\n")
    assert told == "at the end after 9 records; waiting for more (Ctrl-C ends)\n"
    told = told_at_a_terminal(bootstrap, "consume", spread, "--tail", "2", until=")\n")
    assert told == "waiting for more records of spread (3 partitions)\n"


def test_what_is_no_terminal_is_told_nothing(run: Run, spread: str) -> None:
    assert run("consume", spread, "--timeout", "1s").stderr == ""
