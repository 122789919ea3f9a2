"""The command `semel demo`: two runs of one pipeline under the same crashes, with transactions and without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semel.cli.common import fails_well

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: semel demo --seed 7 --kills 40")
@fails_well
def demo(
    records: Annotated[int | None, typer.Option(min=1_000, help="Only the first so many flights.")] = None,
    instances: Annotated[int, typer.Option(min=1, max=6, help="Instances of the pipeline in the group.")] = 3,
    kills: Annotated[int, typer.Option(min=0, max=200, help="How often an instance is killed.")] = 18,
    node_kills: Annotated[int, typer.Option(min=0, max=50, help="How often the node is killed.")] = 5,
    zombies: Annotated[int, typer.Option(min=0, max=20, help="How often an instance is frozen and replaced.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws when what is killed; the same seed draws the same.")] = 1,
    compare: Annotated[bool, typer.Option(help="Run again without idempotence and transactions.")] = True,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to keep data and logs; by default a temporary folder."),
    ] = None,
) -> None:
    """Run an exactly-once pipeline over real flights, killing its processes and the node all the while.

    Reads 336,776 flights from one topic, writes each enriched to another and counts them by carrier, several
    instances in a group, every transaction holding outputs and source offsets. Then reads the output and compares it
    with the data.
    """
    from semel.cli.demo.show import show

    show(records, instances, kills, node_kills, zombies, seed, compare=compare, folder=folder)
