"""Asks nodes that are silent whether they run, beside everything else: nobody waits for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from semel.broker.peers.silence import Sign


@dataclass(slots=True)
class _Suspect:
    sign: Sign = Sign.NONE
    asking: asyncio.Task[None] | None = None


class Probes:
    """What the last answers of nodes were. A node is its id and the epoch of its registration."""

    def __init__(self, probe: Callable[[int], Awaitable[Sign]]) -> None:
        self._probe = probe
        self._suspects: dict[tuple[int, int], _Suspect] = {}

    def ask(self, suspects: Collection[tuple[int, int]]) -> None:
        """Ask these nodes, each once at a time. What is known of others is forgotten."""
        for gone in self._suspects.keys() - set(suspects):
            self._end(self._suspects.pop(gone))
        for each in suspects:
            suspect = self._suspects.setdefault(each, _Suspect())
            if suspect.asking is None or suspect.asking.done():
                suspect.asking = asyncio.get_running_loop().create_task(
                    self._ask(each[0], suspect), name=f"ask node {each[0]} whether it runs"
                )

    def sign_of(self, node: tuple[int, int]) -> Sign:
        """Return a node's last answer, `Sign.NONE` where there was none since it is suspected."""
        suspect = self._suspects.get(node)
        return Sign.NONE if suspect is None else suspect.sign

    def close(self) -> None:
        """Ask nobody any more."""
        self.ask(())

    async def _ask(self, node_id: int, suspect: _Suspect) -> None:
        suspect.sign = await self._probe(node_id)

    @staticmethod
    def _end(suspect: _Suspect) -> None:
        if suspect.asking is not None:
            suspect.asking.cancel()
