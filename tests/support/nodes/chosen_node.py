"""A node whose disk or clock is the tests' own: `chosen_node.py [--synced] [--clock FILE] serve --set NAME=VALUE ...`.

--synced: SIGKILL is a power cut to it (`SyncedStorage`)
--clock:  its clock is off by what FILE says (`ShiftedClock`)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from functools import partial

from shifted_clock import ShiftedClock
from synced_storage import SyncedStorage

from semel.broker.config.sources import load_config
from semel.broker.node import Node
from semel.broker.node_log import configure_logging
from semel.cli.serve import run_node


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--synced", action="store_true")
    parser.add_argument("--clock")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    settings = [text.partition("=") for text in arguments.set]
    loaded = load_config(file=None, flags=[(f"--set {name}", name, value) for name, _, value in settings])
    guard = configure_logging(loaded.config.log_format, loaded.config.log_level)
    storage = SyncedStorage(os.path.abspath(loaded.config.data_dir)) if arguments.synced else None
    clock = None if arguments.clock is None else ShiftedClock(arguments.clock)
    return asyncio.run(run_node(partial(Node.start, loaded, storage=storage, clock=clock), guard))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as the command does: no thread is waited for
