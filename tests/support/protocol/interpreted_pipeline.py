"""A node and its clients without any compiled module or Cython, as on a machine without a compiler: everything once."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[3]
COMPILED = {f"semel.{name}" for name in (ROOT / "compiled-modules.txt").read_text().split()}


class SourcesOnly:
    """Finds the sources of the modules that may be compiled, before anybody finds their twins, and no Cython."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in ("cython", "Cython"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name not in COMPILED or not path:
            return None
        return importlib.util.spec_from_file_location(name, f"{next(iter(path))}/{name.rpartition('.')[2]}.py")


def main() -> None:
    sys.meta_path.insert(0, SourcesOnly)  # type: ignore[arg-type]
    import semel
    from semel.sdk.shared.api import SharedTransaction
    from semel.testing import Broker

    with Broker() as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("in", partitions=1)
        admin.create_topic("out", partitions=1)
        with semel.Producer(node.bootstrap) as producer:
            for value in (b"a", b"b"):
                producer.send("in", value)
        with (
            semel.Consumer(node.bootstrap, group="g", topics=["in"]) as consumer,
            semel.Producer(node.bootstrap, transactional_id="copy") as producer,
        ):
            copied = 0
            while copied < 2:
                batch = consumer.poll(10)
                assert batch is not None
                with producer.transaction(batch) as transaction:
                    for record in batch:
                        transaction.send("out", record.value)
                copied += len(batch)
            for outcome in ("aborted", "committed"):
                producer.begin_transaction()
                producer.send("out", outcome.encode())
                (producer.abort_transaction if outcome == "aborted" else producer.commit_transaction)()
        shared = SharedTransaction(node.bootstrap, "job", token="once")
        with shared.join() as writer:
            writer.send("out", b"shared")
            shared.commit([writer.finish()])
        with semel.Consumer(node.bootstrap) as consumer:
            consumer.assign([semel.TopicPartition("out", 0)])
            found: list[bytes] = []
            while len(found) < 4:
                found += [record.value or b"" for record in consumer.poll(10) or ()]
        assert found == [b"a", b"b", b"committed", b"shared"], found
        assert admin.group_offsets("g")[semel.TopicPartition("in", 0)].offset == 2
    loaded = {name: str(sys.modules[name].__file__) for name in COMPILED & sys.modules.keys()}
    assert len(loaded) == len(COMPILED), sorted(loaded)
    assert not {"cython", "Cython"} & sys.modules.keys()
    assert all(file.endswith(".py") for file in loaded.values()), loaded
    print("everything once")


if __name__ == "__main__":
    main()
