"""`semel serve --metrics`: the ready line, a scrape, the exit code where the port is taken, the export at the end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from metrics_scrape import Scrape, get
from otlp_receiver import OtlpReceiver

from semel.broker.config.sources import Address

COMMAND = [sys.executable, "-P", "-m", "semel.cli", "serve", "--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
READY = re.compile(r"ready: kafka 127\.0\.0\.1:\d+ grpc 127\.0\.0\.1:\d+ metrics 127\.0\.0\.1:(\d+) data /.*\n")
WAIT_S = 60


def test_a_node_is_scraped_and_exports_once_more_at_its_end(tmp_path: Path) -> None:
    command = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--metrics", "127.0.0.1:0"]
    with OtlpReceiver() as receiver:
        # The interval is the default's minute, so that what arrives comes from the end.
        environment = {**os.environ, **receiver.environment(), "OTEL_METRIC_EXPORT_INTERVAL": "60000"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None
            address = Address("127.0.0.1", int(ready[1]))
            assert Scrape.of(address).value("semel_node_ready") == 1
            assert get(address, "/readyz").status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        (last,) = receiver.last("semel.node.ready")
        assert last.value == 1
        assert last.resource["service.instance.id"] == "node-1"


def test_a_port_that_is_taken_ends_the_start_with_the_code_for_addresses(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--metrics", f"127.0.0.1:{taken.getsockname()[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 5
    assert "the metrics can't be served on 127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_tells_of_the_ready_line_as_it_is() -> None:
    """What stood in square brackets was taken for markup, and left out."""
    command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert 'With --metrics, "metrics HOST:PORT" stands before "data"' in " ".join(told.split())
