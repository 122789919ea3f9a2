"""A simulated world inside the process of a test, which other tests use after it."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from simulation.world import World


@contextmanager
def world_in_this_process(seed: int) -> Iterator[World]:
    """Give a world without a word in the log. At the end nothing may have gone wrong in it, and nothing of it stays."""
    gc.disable()
    logging.disable(logging.CRITICAL)
    world = World(seed)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # a killed process leaves some
            try:
                yield world
                assert world.scheduler.errors == []
            finally:
                world.close()
                gc.collect()
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
