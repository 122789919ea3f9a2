"""Commands whose standard input, output or error is closed: no traceback, and nothing goes where it does not belong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from semel.cli.common import ExitCode
from semel.testing import Broker

NOWHERE = ("--bootstrap", "127.0.0.1:1")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as node:
        node.create_topic("orders")
        yield node.bootstrap


def run(closed: str, *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, and what is on standard output and standard error."""
    shown = subprocess.run(
        ["sh", "-c", f'exec "$0" -P -m semel.cli "$@" {closed}', sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return shown.returncode, shown.stdout, shown.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_table_that_nobody_can_see_is_no_error(bootstrap: str, closed: str) -> None:
    """It ended in 40 lines of traceback: 'NoneType' object has no attribute 'isatty'."""
    code, out, err = run(closed, "node", "list", "--bootstrap", bootstrap)
    assert (code, err) == (ExitCode.OK, "")
    assert ("replicas" in out) == (closed == "2>&-")
    assert run(closed, "--help")[::2] == (ExitCode.OK, "")


def test_an_error_is_not_printed_on_standard_output_where_standard_error_is_closed() -> None:
    assert run("2>&-", "node", "list", *NOWHERE) == (ExitCode.UNREACHABLE, "", "")
    code, _, err = run(">&-", "node", "list", *NOWHERE)
    assert (code, "nothing listens" in err) == (ExitCode.UNREACHABLE, True)


def test_what_can_not_be_printed_or_read_is_refused(bootstrap: str) -> None:
    """Printed nowhere, a group's records would be committed; and input that can't be read is not an empty one."""
    consumed = run(">&-", "consume", "orders", "--group", "g", "--timeout", "1s", "--bootstrap", bootstrap)
    assert consumed == (
        ExitCode.USAGE,
        "",
        "semel: standard output is closed, so nothing can be printed: redirect it\n",
    )
    produced = run("<&-", "produce", "orders", "--bootstrap", bootstrap)
    assert produced == (ExitCode.USAGE, "", "semel: standard input is closed: name files, or redirect it\n")


def test_a_file_is_sent_where_standard_input_is_closed(
    bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("closed") / "records"
    path.write_text("one\ntwo\n")
    sent = run("<&-", "produce", "orders", str(path), "--bootstrap", bootstrap)
    assert sent == (ExitCode.OK, "", "sent 2 records to orders\n")
