"""The commands against a node, as a person at a terminal uses them: what they print, and what their exit codes say."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_node import LiveNode
from typer.testing import CliRunner, Result

import semel
from semel.cli import produce
from semel.cli.common import ExitCode
from semel.cli.main import app
from semel.sdk.consumer.api import Consumer
from semel.testing import Broker

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as node:
        yield node.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, env={"SEMEL_BOOTSTRAP": bootstrap})

    return run


def test_records_go_in_and_come_out(run: Run) -> None:
    assert run("topic", "create", "round", "--partitions", "2").stdout == "round has 2 partitions\n"
    sent = run("produce", "round", "--key-separator", ":", stdin="a:1\nb:2\nc:3\n")
    assert (sent.exit_code, sent.stderr) == (0, "sent 3 records to round\n")
    got = run("consume", "round", "--from-beginning", "--max", "3", "--json")
    assert {(one["key"], one["value"]) for one in map(json.loads, got.stdout.splitlines())} == {
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
    }


def test_binary_values_survive_json(run: Run) -> None:
    run("topic", "create", "binary", "--partitions", "1")
    run("produce", "binary", "--format", "json", stdin='{"value_base64": "/wA=", "headers": {"h": "x"}}\n')
    got = run("consume", "binary", "--from-beginning", "--max", "1", "--format", "json").stdout
    again = run("produce", "binary", "--format", "json", stdin=got)
    assert again.exit_code == 0, again.stderr
    assert json.loads(got)["value_base64"] == "/wA="


def test_binary_header_values_survive_json(run: Run) -> None:
    """They were printed as text with backslashes, which went back in as that text."""
    run("topic", "create", "binary-headers", "--partitions", "1")
    headers = [["a", {"base64": "/wA="}], ["a", "text"], ["none", None], ["json", {"base64": "eA==", "x": 1}]]
    sent = run("produce", "binary-headers", "--format", "json", stdin=json.dumps({"value": "v", "headers": headers}))
    assert sent.exit_code == 0, sent.stderr
    got = run("consume", "binary-headers", "--from-beginning", "--max", "1", "--json").stdout
    assert json.loads(got)["headers"] == [*headers[:3], ["json", '{"base64":"eA==","x":1}']]
    again = run("produce", "binary-headers", "--format", "json", stdin=got)
    assert again.exit_code == 0, again.stderr
    both = run("consume", "binary-headers", "--from-beginning", "--max", "2", "--json").stdout.splitlines()
    assert json.loads(both[0])["headers"] == json.loads(both[1])["headers"]
    wrong = run("produce", "binary-headers", "--format", "json", stdin='{"headers": {"h": {"base64": "?"}}}')
    assert wrong.exit_code == ExitCode.USAGE
    assert "header 'h' is not base64" in wrong.stderr


def test_a_topic_without_a_name_is_called_that(run: Run) -> None:
    """It said "option name must not be empty"; there is no such option."""
    refused = run("topic", "create", "")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.stderr.startswith("semel: a topic's name must not be empty")


def test_input_that_breaks_off_says_how_far_it_got(run: Run) -> None:
    run("topic", "create", "broken", "--partitions", "1")
    plain = run("produce", "broken", "--key-separator", ":", stdin="a:1\nb:2\nnothing\n")
    assert plain.exit_code == ExitCode.USAGE
    assert plain.stderr == (
        "2 records had been sent to broken before this:\nsemel: standard input, line 3: no ':' between key and value\n"
    )
    whole = run("produce", "broken", "--key-separator", ":", "--transaction", "t", stdin="a:1\nnothing\n")
    assert whole.stderr.startswith("nothing was sent: the transaction is aborted\n")
    got = run("consume", "broken", "--from-beginning", "--timeout", "0.5")
    assert got.stdout == "1\n2\n"


def test_an_offset_that_is_not_there_is_refused(run: Run) -> None:
    run("topic", "create", "places", "--partitions", "1")
    run("produce", "places", stdin="a\nb\n")
    refused = run("consume", "places", "--partition", "0", "--offset", "77")
    assert refused.exit_code == ExitCode.REFUSED
    assert "77" in refused.stderr
    assert run("consume", "places", "--partition", "0", "--offset", "1", "--max", "1").stdout == "b\n"


def test_a_group_that_was_never_there_is_refused(run: Run) -> None:
    refused = run("group", "describe", "nobody")
    assert (refused.exit_code, refused.stdout) == (ExitCode.REFUSED, "")
    assert "there is no group 'nobody'" in refused.stderr


def test_a_group_is_listed_described_and_reset(run: Run) -> None:
    run("topic", "create", "grouped", "--partitions", "1")
    run("produce", "grouped", stdin="a\nb\n")
    run("consume", "grouped", "--group", "readers", "--from-beginning", "--max", "2")
    assert json.loads(run("group", "describe", "readers", "--json").stdout)["offsets"][0]["lag"] == 0
    assert "readers" in run("group", "list", "--state", "Empty").stdout
    run("group", "reset-offsets", "readers", "--to", "earliest", "--yes")
    assert json.loads(run("group", "describe", "readers", "--json").stdout)["offsets"][0]["lag"] == 2


def test_partitions_that_members_hold_and_have_not_committed_count_as_lag(run: Run, bootstrap: str) -> None:
    run("topic", "create", "held", "--partitions", "2")
    run("produce", "held", "--partition", "1", stdin="a\nb\nc\n")
    with Consumer(bootstrap, group="holders", topics=["held"]) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        found = json.loads(run("group", "describe", "holders", "--json").stdout)["offsets"]
        shown = run("group", "describe", "holders").stdout
    assert [(one["committed"], one["lag"]) for one in found] == [(-1, 0), (-1, 3)]
    assert "total lag: 3" in shown


def test_times_before_1970_are_before_all_records_not_the_end(run: Run) -> None:
    """-1 ms, which is 1969-12-31T23:59:59.999Z, is the protocol's word for the end; and year 1 was a traceback."""
    run("topic", "create", "times", "--partitions", "1")
    run("produce", "times", stdin="a\nb\n")
    for moment in ("1969-12-31T23:59:59.999+00:00", "1970-01-01T00:00:00+14:00", "0001-01-01"):
        moved = run(
            "group", "reset-offsets", "g", "--topic", "times", "--to", moment, "--create", "--dry-run", "--json"
        )
        assert moved.exit_code == 0, moved.output
        assert json.loads(moved.stdout) == [
            {"topic": "times", "partition": 0, "old": None, "offset": 0, "clamped_to": None}
        ]


def test_a_header_that_is_given_twice_is_sent_twice(run: Run) -> None:
    run("topic", "create", "headers", "--partitions", "1")
    run("produce", "headers", "--header", "x=1", "--header", "x=2", stdin="a\n")
    got = run("consume", "headers", "--from-beginning", "--max", "1", "--json").stdout
    assert json.loads(got)["headers"] == [["x", "1"], ["x", "2"]]


def test_records_above_the_default_bound_can_be_sent_where_the_topic_takes_them(run: Run) -> None:
    run("topic", "create", "large", "--partitions", "1", "--config", "max.message.bytes=5000000")
    line = "x" * 3_000_000
    refused = run("produce", "large", stdin=line)
    assert refused.exit_code == ExitCode.USAGE
    assert "record_bytes_max" in refused.stderr
    sent = run("produce", "large", "--record-bytes-max", "4000000", stdin=line)
    assert sent.exit_code == 0, sent.stderr
    assert run("consume", "large", "--from-beginning", "--max", "1").stdout == line + "\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "create", "t", "--partitions", "0"), "1 or more"),
        (("topic", "delete-records", "t", "--before", "1"), "orders:0"),
        (("group", "list", "--state", "Stabel"), "the states are Empty"),
        (("group", "reset-offsets", "g", "--to", "soon", "--partition", "t:0"), "ISO 8601"),
        (("group", "list", "--state", "Reconcilin"), "Reconciling"),
        (("topic", "create", "t", "-c", "retention.ms=1", "-c", "retention.ms=2"), "retention.ms twice: 1 and 2"),
        (("produce", "t", "--header", "x"), "NAME=VALUE"),
        (("consume", "t", "--offset", "1"), "--partition"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(run: Run, arguments: tuple[str, ...], said: str) -> None:
    run("topic", "create", "t", "--partitions", "1")
    result = run(*arguments, stdin="")
    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_can_not_be_written_is_said_in_a_line(bootstrap: str) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-P", "-m", "semel.cli", "topic", "list", "--internal", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "SEMEL_BOOTSTRAP": bootstrap},
            timeout=60,
            check=False,
        )
    assert result.stderr == b"semel: failed: [Errno 28] No space left on device\n"
    assert result.returncode == ExitCode.REFUSED


@pytest.mark.parametrize(
    "arguments",
    [("topic", "list"), ("consume", "t", "--timeout", "0"), ("consume", "t", "--group", "g", "--timeout", "0")],
    ids=" ".join,
)
def test_without_a_node_it_says_so(arguments: tuple[str, ...]) -> None:
    """A reader in a group tried on in silence, and ended as if there were no records."""
    result = CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": "127.0.0.1:1"})
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "Is the node running?" in result.stderr


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("semel ")


# as processes: pipes that are closed early, and Ctrl-C


def start(bootstrap: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "semel.cli", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env={**os.environ, "SEMEL_BOOTSTRAP": bootstrap}, **pipes)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return the exit code and what was said on standard error, without having closed standard input."""
    with process:
        assert process.stderr is not None
        said = process.stderr.read().decode()
        return process.wait(60), said


@pytest.mark.parametrize(
    "arguments",
    [("consume", "early", "--from-beginning"), ("topic", "list"), ("topic", "list", "--json")],
    ids=" ".join,
)
def test_a_pipe_that_is_closed_early_is_no_error(bootstrap: str, run: Run, arguments: tuple[str, ...]) -> None:
    run("topic", "create", "early", "--partitions", "1")
    run("produce", "early", stdin="".join(f"line {number}\n" for number in range(20_000)))
    ours, theirs = os.pipe()
    process = start(bootstrap, *arguments, stdout=theirs)
    os.close(theirs)
    if arguments[0] == "consume":
        assert os.read(ours, 7) == b"line 0\n"
    os.close(ours)
    assert ended(process) == (0, "")


def test_ctrl_c_ends_a_consumer_that_has_committed_what_it_printed(bootstrap: str, run: Run) -> None:
    run("topic", "create", "interrupted", "--partitions", "1")
    run("produce", "interrupted", stdin="a\nb\n")
    process = start(bootstrap, "consume", "interrupted", "--from-beginning", "--group", "readers")
    assert process.stdout is not None
    assert (process.stdout.readline(), process.stdout.readline()) == (b"a\n", b"b\n")
    place = semel.TopicPartition("interrupted", 0)
    with semel.Admin(bootstrap) as admin:
        wait_for(lambda: place in admin.group_offsets("readers"))
        process.send_signal(signal.SIGINT)
        assert ended(process) == (ExitCode.INTERRUPTED, "")
        assert admin.group_offsets("readers")[place].offset == 2


@pytest.mark.parametrize("arguments", [(), ("--transaction", "load")])
def test_ctrl_c_in_the_midst_of_producing_says_what_was_sent(
    bootstrap: str, run: Run, arguments: tuple[str, ...]
) -> None:
    topic = f"midst-{len(arguments)}"
    place = semel.TopicPartition(topic, 0)
    run("topic", "create", topic, "--partitions", "1")
    process = start(bootstrap, "produce", topic, *arguments)
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    with semel.Admin(bootstrap) as admin:
        everything = semel.Consumer(bootstrap, isolation="read_uncommitted")
        with everything:
            everything.assign([place])
            assert everything.poll(60) is not None
        process.send_signal(signal.SIGINT)
        code, said = ended(process)
        assert code == ExitCode.INTERRUPTED
        expected = (
            "nothing was sent: the transaction is aborted" if arguments else "interrupted; sent to midst-0: 1 record"
        )
        assert said.startswith(expected)
        assert "Traceback" not in said
        if arguments:
            assert admin.transaction("load").state in ("PrepareAbort", "CompleteAbort")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "interrupted; sent to full: 1 record"),
        (("--transaction", "load"), "nothing was sent: the transaction is aborted"),
    ],
)
def test_ctrl_c_while_the_node_takes_nothing_does_not_wait_for_it(arguments: tuple[str, ...], expected: str) -> None:
    """The end of the command waited for what could not be delivered, or aborted: for two minutes, and for one."""
    with Broker() as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("full", partitions=1)
        process = start(node.bootstrap, "produce", "full", *arguments)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        with semel.Consumer(node.bootstrap, offset_reset="earliest", isolation="read_uncommitted") as consumer:
            consumer.assign([semel.TopicPartition("full", 0)])
            assert consumer.poll(60) is not None
        node.stop()
        process.stdin.write(b"two\n")
        process.stdin.flush()
        said = process.stderr.readline().decode()
        assert "no connection to node" in said
        process.send_signal(signal.SIGINT)
        code, said = ended(process)
    assert code == ExitCode.INTERRUPTED
    assert expected in said


def test_ctrl_c_amid_a_transaction_gives_the_node_a_moment_and_no_more(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[float | None] = []
    close = semel.Producer.close

    def noted(self: semel.Producer, timeout_s: float | None = None) -> None:
        closed.append(timeout_s)
        close(self, timeout_s)

    def interrupted(_producer: object, _topic: str, messages: Iterable[object], *_: object) -> int:
        next(iter(messages))
        raise KeyboardInterrupt

    run("topic", "create", "moment", "--partitions", "1")
    monkeypatch.setattr(semel.Producer, "close", noted)
    monkeypatch.setattr(produce, "_send_all", interrupted)
    assert run("produce", "moment", "--transaction", "load", stdin="one\n").exit_code == ExitCode.INTERRUPTED
    assert closed[0] == produce.ABORT_S


def test_a_partition_that_the_topic_does_not_have_is_no_missing_topic(run: Run) -> None:
    """It said to create the topic, which there was."""
    run("topic", "create", "narrow", "--partitions", "3")
    done = run("produce", "narrow", "--partition", "7", stdin="x\n")
    assert done.exit_code == ExitCode.REFUSED
    assert (
        "has partitions 0 to 2, not 7. Choose one of them, or add some with `semel topic add-partitions" in done.stderr
    )


def test_an_empty_format_is_refused(run: Run) -> None:
    done = run("consume", "anything", "--format", "")
    assert done.exit_code == ExitCode.USAGE
    assert "--format takes value" in done.stderr


def test_the_settings_of_a_node_may_be_read_in_part() -> None:
    """`semel serve --settings | head -1` was an error."""
    command = f"set -o pipefail; {sys.executable} -P -m semel.cli serve --settings | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_line_that_is_no_json_is_named(run: Run, tmp_path: Path) -> None:
    run("topic", "create", "named", "--partitions", "1")
    file = tmp_path / "orders.jsonl"
    for broken, why in (
        ("{", "not JSON"),
        ("7", "a JSON object is needed, not int"),
        ('{"valeu": 1}', "unknown field 'valeu'"),
        ('{"value_base64": "%"}', "value_base64 is not base64"),
        ('{"value": "x", "partition": "0"}', "partition is a number"),
        ('{"value": "x", "headers": 3}', "headers is an object"),
        ('{"value": "x", "headers": [[null, "1"]]}', "headers is an object"),
    ):
        file.write_text(f'{{"value": "fine"}}\n{broken}\n')
        result = run("produce", "named", str(file), "--format", "json")
        assert result.exit_code == ExitCode.USAGE
        assert f"{file}:2: {why}" in result.stderr, result.stderr


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_stable_end_is_not_beyond_the_end_while_producers_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end was asked for first: what was written in between made a stable end of 575 beside an end of 574."""
    live = LiveNode(tmp_path)
    look_up = semel.Admin.look_up_offsets

    def write_and_look_up(admin: semel.Admin, *arguments: Any, **options: Any) -> Any:
        with semel.Producer(live.bootstrap) as producer:
            producer.send("orders", b"r").result(30)
        return look_up(admin, *arguments, **options)

    monkeypatch.setattr(semel.Admin, "look_up_offsets", write_and_look_up)
    with live:
        environment = {"SEMEL_BOOTSTRAP": live.bootstrap}
        CliRunner().invoke(app, ["topic", "create", "orders"], env=environment)
        shown = CliRunner().invoke(app, ["topic", "describe", "orders", "--json"], env=environment)
        (found,) = json.loads(shown.stdout)["offsets"]
    assert (found["start"], found["stable"], found["end"]) == (0, 2, 3)


def test_an_offline_partition_does_not_hide_the_others_from_describe(tmp_path: Path) -> None:
    """One directory that was gone made `topic describe` and `group describe` fail altogether."""
    live = LiveNode(tmp_path)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, env={"SEMEL_BOOTSTRAP": live.bootstrap})

    with live:
        run("topic", "create", "orders", "--partitions", "3")
        for partition in range(3):
            run("produce", "orders", "--partition", str(partition), stdin="a\nb\n")
        assert run("consume", "orders", "--group", "readers", "--from-beginning", "--max", "6").exit_code == 0
    shutil.rmtree(tmp_path / "data" / "orders-1")
    with live:
        for command in (("topic", "describe", "orders"), ("group", "describe", "readers")):
            shown = run(*command)
            assert shown.exit_code == ExitCode.REFUSED
            assert shown.stderr == "semel: orders:1 is offline. `semel doctor` says why, and what to do\n"
            assert [line.split()[-1] for line in shown.stdout.splitlines() if "offline" in line] == ["-"]
            parsed = run(*command, "--json")
            assert parsed.exit_code == ExitCode.REFUSED
            found = json.loads(parsed.stdout)["offsets"]
            assert [(one["partition"], one["end"], one.get("error")) for one in found] == [
                (0, 2, None),
                (1, None, "offline"),
                (2, 2, None),
            ]
        assert "total lag: 0, without 1 partition" in run("group", "describe", "readers").stdout
        assert [one["committed"] for one in found] == [2, 2, 2]
        with semel.Admin(live.bootstrap) as admin, pytest.raises(semel.RetriableError, match="`semel doctor`"):
            admin.group_lag("readers")


def test_a_topic_that_is_not_there_is_created_where_that_is_asked_for(run: Run) -> None:
    refused = run("produce", "mistyped", stdin="a\n")
    assert refused.exit_code == ExitCode.REFUSED
    assert refused.stderr == (
        "semel: there is no topic 'mistyped'. Give --create, or create it with `semel topic create mistyped "
        "--partitions N` [UNKNOWN_TOPIC_OR_PARTITION]\n"
    )
    for more in ((), ("--transaction", "m")):
        for stdin in ("a\n", ""):
            also_refused = run("produce", "mistyped", *more, stdin=stdin)
            assert (also_refused.exit_code, also_refused.stderr) == (ExitCode.REFUSED, refused.stderr), (more, stdin)
    made = run("produce", "made", "--create", stdin="a\n")
    assert (made.exit_code, made.stderr) == (0, "created topic made with 1 partition\nsent 1 record to made\n")
    again = run("produce", "made", "--create", stdin="b\n")
    assert (again.exit_code, again.stderr) == (0, "sent 1 record to made\n")
    assert run("produce", "no name", "--create", stdin="b\n").exit_code != 0


def test_what_has_begun_nothing_says_nothing_of_what_was_sent(run: Run) -> None:
    """It said that 0 records had been sent before a wrong option."""
    run("topic", "create", "begun", "--partitions", "1")
    for arguments in (("no such file",), ("--key-separator", ""), ("--transaction", "t9", "no such file")):
        refused = run("produce", "begun", *arguments, stdin="a\n")
        assert refused.exit_code == ExitCode.USAGE
        assert "sent" not in refused.stderr
    json_input = run("produce", "begun", "--format", "json", stdin="{\n")
    assert json_input.stderr.startswith("semel: standard input, line 1: not JSON: ")
    wrong = run("produce", "begun", "--compression", "zip", stdin="")
    assert wrong.exit_code == ExitCode.USAGE
    assert all(f"'{name}'" in wrong.stderr for name in ("none", "gzip", "snappy", "lz4", "zstd"))


def test_an_error_of_a_topic_names_it_once(run: Run) -> None:
    run("topic", "create", "once", "--partitions", "1")
    assert run("topic", "create", "once").stderr == "semel: topic once already exists [TOPIC_ALREADY_EXISTS]\n"
    gone = run("topic", "delete", "never", "--yes").stderr
    assert gone.count("never") == 1
    assert run("topic", "delete-records", "once:0", "--before", "9").stderr.count("once-0") == 1


def test_a_group_that_does_not_exist_is_reset_only_where_it_is_to_be_created(run: Run) -> None:
    """A typo made a group."""
    run("topic", "create", "resets", "--partitions", "1")
    for options in (("--yes",), ("--dry-run",)):
        refused = run("group", "reset-offsets", "typo", "--to", "latest", "--topic", "resets", *options)
        assert (refused.exit_code, refused.stdout) == (ExitCode.REFUSED, "")
        assert "there is no group 'typo'" in refused.stderr
        assert "--create" in refused.stderr
    assert "typo" not in run("group", "list").stdout
    made = run("group", "reset-offsets", "meant", "--to", "latest", "--topic", "resets", "--create", "--yes")
    assert made.exit_code == 0, made.stderr
    assert "meant" in run("group", "list").stdout


def test_offsets_outside_of_the_log_are_said_to_be_clamped_and_the_old_ones_are_shown(run: Run) -> None:
    run("topic", "create", "clamped", "--partitions", "1")
    run("produce", "clamped", stdin="a\nb\nc\n")
    run("topic", "delete-records", "clamped:0", "--before", "1")
    reset = ("group", "reset-offsets", "clamping", "--partition", "clamped:0", "--create", "--yes", "--to")
    first = run(*reset, "2").stdout.splitlines()
    assert [line.split() for line in first] == [
        ["topic", "partition", "old", "new", "note"],
        ["clamped", "0", "-", "2"],
    ]
    for to, old, new, note in (
        ("1999", 2, 3, "1999 is not in the log: set to its end"),
        ("0", 3, 1, "0 is not in the log: set to its start"),
        ("0s", 1, 3, "no record is that new: set to the end"),
        ("earliest", 3, 1, ""),
    ):
        shown = run(*reset, to).stdout.splitlines()[1].split(maxsplit=4)
        assert shown == ["clamped", "0", str(old), str(new), *([note] if note else [])]
    found = json.loads(run(*reset, "1999", "--json").stdout)
    assert found == [{"topic": "clamped", "partition": 0, "old": 1, "offset": 3, "clamped_to": "end"}]
    dry = run(*reset, "earliest", "--dry-run")
    assert dry.stderr == "nothing was changed (--dry-run)\n"
    assert json.loads(run("group", "describe", "clamping", "--json").stdout)["offsets"][0]["committed"] == 3


@pytest.mark.parametrize(
    ("group", "old", "new", "arguments"),
    [
        ("topic", "grow", "add-partitions", ("renamed", "--partitions", "2")),
        ("group", "reset", "reset-offsets", ("nobody", "--topic", "renamed", "--to", "latest", "--create", "--yes")),
    ],
)
def test_a_command_that_was_renamed_is_found_by_its_old_name_which_no_help_lists(
    run: Run, group: str, old: str, new: str, arguments: tuple[str, ...]
) -> None:
    run("topic", "create", "renamed", "--partitions", "1", "--if-not-exists")
    done = run(group, old, *arguments)
    told = f"semel: `semel {group} {old}` is called `semel {group} {new}` now; the next version has no `{old}`\n"
    assert (done.exit_code, done.stderr) == (0, told)
    again = run(group, new, *arguments)
    assert "is called" not in again.stderr
    listed = re.findall(r"^\W*([a-z-]+)  ", run(group, "--help").stdout, re.MULTILINE)
    assert new in listed
    assert old not in listed
