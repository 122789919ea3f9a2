"""`semel metadata`: what is done to the metadata of a node that is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from semel.cli.common import command_app, examples, fails_well

app = command_app("Move the metadata of a node to a database that other nodes can use.")


@app.callback()
def metadata() -> None:
    """Move the metadata of a node to a database that other nodes can use."""


@app.command(
    epilog=examples(
        "semel metadata move --data-dir /var/lib/semel --to postgresql+psycopg://semel@db.example.com/semel",
    )
)
@fails_well
def move(
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The database, as in metadata.url. It must be empty.")],
    data_dir: Annotated[
        str, typer.Option("--data-dir", metavar="DIR", help="The data directory of the node.")
    ] = "semel-data",
) -> None:
    """Move the metadata of a stopped node from its data directory to a database, so that other nodes can join it.

    Its topics and records stay where they are. Then start the node with --set metadata.url=URL, peer.listen and
    cluster.secret.file, and the others beside it.
    """
    from semel.broker.metadata_moving import MOVED_FILE, move_metadata
    from semel.runtime.disk_storage import DiskStorage

    position = move_metadata(DiskStorage(), data_dir, to)
    print(
        f"moved {position.sequence} changes of the metadata. Start the node with metadata.url, peer.listen and "
        f"cluster.secret.file from now on; {data_dir}/{MOVED_FILE} is a copy that nothing uses."
    )
