"""A process that writes in shared transactions, or commits them: an order by line of JSON, an answer by line.

It waits for its next order wherever it stands, so that a test can kill it, or the node, in any phase.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import semel


def packed(thing: object) -> str:
    return base64.b64encode(pickle.dumps(thing)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


class Process:
    """The other side: a worker process and what it is told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, do: str, **order: Any) -> None:
        """Give an order without waiting for it to be done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait until an order is done, and return what came of it: its results, or the error's kind and message."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker has died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        self.tell(do, **order)
        return self.hear()

    def write(self, shared: semel.SharedTransaction, topic: str, values: list[str], *, finish: bool = True) -> Any:
        """Join and write; returns the member, or None without `finish`."""
        assert self.ask("join", shared=packed(shared)) == {}
        assert self.ask("write", topic=topic, values=values) == {}
        return unpacked(self.ask("finish")["member"]) if finish else None

    def kill(self) -> None:
        self._process.kill()
        self._close()

    @property
    def is_killed(self) -> bool:
        return self._process.returncode is not None

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class Worker:
    """What the process does with its orders."""

    def __init__(self) -> None:
        self._writer: semel.SharedWriter
        self._producer: semel.Producer
        self._left_open: semel.Producer
        """Dropped, it would abort what it has open."""

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        method = getattr(self, order.pop("do"))
        try:
            answer: dict[str, Any] = method(**order) or {}
        except semel.SemelError as error:
            return {"error": type(error).__name__, "message": str(error)}
        return answer

    def join(self, shared: str) -> None:
        self._writer = unpacked(shared).join(linger_ms=0)

    def join_and_write(self, shared: str, topic: str, values: list[str]) -> None:
        self.join(shared)
        self.write(topic, values)

    def write(self, topic: str, values: list[str]) -> None:
        for value in values:
            self._writer.send(topic, value, key=value)
        self._writer.flush()

    def finish(self) -> dict[str, Any]:
        return {"member": packed(self._writer.finish())}

    def commit(self, shared: str, members: str, moves: str = "") -> dict[str, Any]:
        """`moves` is what else the commit gets, such as offsets."""
        result = unpacked(shared).commit(unpacked(members), **(unpacked(moves) if moves else {}))
        return {"already": result.already_committed}

    def transaction(self, bootstrap: str, name: str, token: str, topic: str, values: list[str]) -> dict[str, Any]:
        with semel.Producer(bootstrap, transactional_id=name) as producer:
            with producer.transaction(token=token) as txn:
                for value in values:
                    txn.send(topic, value, key=value)
            return {"already": txn.already_committed}

    def prepare(
        self, bootstrap: str, name: str, topic: str, values: list[str], timeout_ms: int = 60_000
    ) -> dict[str, Any]:
        """Leave a transaction for somebody outside to decide, and stay alive with it: `timeout_ms` means nothing."""
        self._producer = semel.Producer(
            bootstrap, transactional_id=name, two_phase=True, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions(keep_prepared=True)
        self._producer.begin_transaction()
        for value in values:
            self._producer.send(topic, value, key=value)
        return {"prepared": str(self._producer.prepare_transaction())}

    def leave_open(self, bootstrap: str, name: str, topic: str, values: list[str], timeout_ms: int) -> None:
        """Write in an ordinary transaction, and do not end it."""
        self._left_open = semel.Producer(bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms)
        self._left_open.begin_transaction()
        for value in values:
            self._left_open.send(topic, value, key=value)
        self._left_open.flush()

    def take_over(self, bootstrap: str, name: str) -> dict[str, Any]:
        """Find what another process has left prepared."""
        self._producer = semel.Producer(bootstrap, transactional_id=name, two_phase=True)
        found = self._producer.init_transactions(keep_prepared=True)
        return {"found": None if found is None else str(found)}

    def complete(self, decided: str | None) -> None:
        """End what this process holds: `decided` is the last one that was decided to commit."""
        self._producer.complete_transaction(decided)


def main() -> None:
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.obey(json.loads(line))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
