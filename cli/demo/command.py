"""The command `semel demo`: two runs of one pipeline under the same crashes, with transactions and without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semel.cli.common import command_app, examples, fails_well
from semel.cli.signals import finishing_on_signals
from semel.protocol.errors import UsageError

app = command_app()


@app.command(epilog=examples("semel demo --seed 7 --kills 40"))
@fails_well
def demo(
    records: Annotated[int | None, typer.Option(min=1_000, metavar="N", help="Use only the first N flights.")] = None,
    instances: Annotated[
        int, typer.Option(min=1, max=6, metavar="N", help="How many instances of the pipeline run in the group.")
    ] = 3,
    kills: Annotated[int, typer.Option(min=0, max=200, metavar="N", help="How often an instance is killed.")] = 18,
    node_kills: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=50,
            metavar="N",
            help="How often the node is killed, 5 times unless you say so; with --cluster, how many faults nodes have: "
            "one of each kind; with --diskless, how often one of the nodes is killed and emptied: 12 times.",
        ),
    ] = None,
    zombies: Annotated[
        int, typer.Option(min=0, max=20, metavar="N", help="How often an instance is frozen and replaced.")
    ] = 3,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides what is killed when; the same seed gives the same kills.")
    ] = 1,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Run on three nodes that replicate, with PostgreSQL for their metadata where it is installed. Nodes "
            "are killed, frozen, cut off from each other and from PostgreSQL, which is killed, too, and one loses its "
            "directory for good, while the flights come.",
        ),
    ] = False,
    diskless: Annotated[
        bool,
        typer.Option(
            "--diskless",
            help="Run on three nodes that have nothing of their own: all topics are diskless, with an S3 of the demo's "
            "own for the bytes (moto; a directory where it is not installed), and PostgreSQL where it is. Each node "
            "that is killed is replaced by an empty one. At the end it says what that would cost a month.",
        ),
    ] = False,
    compare: Annotated[bool, typer.Option(help="Run again without idempotence and transactions, to compare.")] = True,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep data and logs. Default: a temporary directory."),
    ] = None,
) -> None:
    """Run an exactly-once pipeline over real flights while its processes and the node are killed.

    Several instances in one group read 336,776 flights from a topic, write each enriched to another, and count them by
    carrier. Every transaction has outputs and source offsets. At the end the output is read and compared with the data.
    """
    from semel.cli.demo.run import Kind
    from semel.cli.demo.show import show

    if cluster and diskless:
        raise UsageError("--cluster and --diskless are two demos: run one after the other")
    kind = Kind.DISKLESS if diskless else Kind.CLUSTER if cluster else Kind.NODE
    if node_kills is None:
        node_kills = kind.node_kills
    with finishing_on_signals():  # the processes that it started end with it
        show(
            records, instances, kills, node_kills, zombies, seed,
            compare=compare and kind is Kind.NODE, folder=folder, kind=kind,
        )  # fmt: skip
