"""A pipeline of Apache Beam at work on Flink (`compat/beam/src/NumberingPipeline.java`): its process, and a judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flink_runs import KEYS, NUMBERED, Input, OnFlink, checkpoint_number, latest_checkpoint
from node_processes import wait_for

SINK = "numbered-by-beam"
"""The group in which the sink keeps where each of its shards is, beside the committed offsets."""


@dataclass
class Results:
    """What a reader of committed records has seen of the output. Beam keeps no order, also not within a key."""

    values: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """How often each was seen: key, reading, number."""
    seen: int = 0

    def add(self, topic: str, key: bytes, value: bytes) -> None:
        assert topic == NUMBERED
        reading, number = value.decode().split()
        self.values[key.decode(), reading, int(number)] += 1
        self.seen += 1

    def wrong(self, source: Input) -> list[str]:
        """Each reading has to be there once, and the numbers of a key once, from 1 on. Empty: right."""
        readings = Counter[tuple[str, str]]()
        numbers = Counter[tuple[str, int]]()
        for (key, reading, number), times in self.values.items():
            readings[key, reading] += times
            numbers[key, number] += times
        wanted = Counter({(f"sensor{number % KEYS}", f"reading{number}"): 1 for number in range(source.count)})
        due = Counter(
            {(key, place): 1 for key, values in source.results().items() for place in range(1, len(values) + 1)}
        )
        return [
            f"{of}: {found[of]} times, not {right[of]}"
            for found, right in ((readings, wanted), (numbers, due))
            for of in sorted(found.keys() | right.keys())
            if found[of] != right[of]
        ]


class Pipeline(OnFlink):
    """The numbering pipeline, with two shards of its sink."""

    transactions = f"producer_[0-9]+_for_{SINK}"

    def __init__(self, folder: Path, jars: Path, classes: Path, kafka: str) -> None:
        super().__init__(folder, jars, classes, "NumberingPipeline")
        self._kafka = kafka

    def arguments(self, checkpoint: Path | None) -> list[str]:
        # In one JVM Beam leaves its option savepointPath aside: Flink's own setting has an effect.
        settings = "" if checkpoint is None else f"execution.savepoint.path: file://{checkpoint}\n"
        (self._folder / "flink-conf.yaml").write_text(settings)
        options = {
            "runner": "FlinkRunner",
            "flinkMaster": "[local]",
            "flinkConfDir": self._folder,
            "streaming": "true",
            "parallelism": 2,
            "checkpointingInterval": 1_000,
            "externalizedCheckpointsEnabled": "true",
            "retainExternalizedCheckpointsOnCancellation": "true",
            "stateBackend": "filesystem",
            "stateBackendStoragePath": f"file://{self.checkpoints}",
        }
        return [self._kafka, "2", SINK, *(f"--{name}={value}" for name, value in options.items())]


def wait_for_checkpoint(checkpoints: Path) -> None:
    """Wait for one that began after the results that are there by now.

    Beam can't continue a shard of its sink that was written to before a checkpoint knew it.
    """
    first = latest_checkpoint(checkpoints)
    begun = 0 if first is None else checkpoint_number(first)

    def is_there() -> bool:
        latest = latest_checkpoint(checkpoints)
        return latest is not None and checkpoint_number(latest) >= begun + 2

    wait_for(is_there, "a checkpoint that knows the shards of the sink")
