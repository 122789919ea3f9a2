"""`semel topic`: create, list, describe, configure and delete topics, and add partitions to them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    RenamedCommands,
    command_app,
    counted,
    delete_when_sure,
    examples,
    fail_for_partitions,
    fails_well,
    open_admin,
    parse_partition,
    parse_settings,
    print_json,
    print_table,
    rows_of,
    state_of,
)
from semel.cli.live import watchable
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import NO_LEADER, TopicPartition, format_topic_id
from semel.protocol.wording import partition_argument

if TYPE_CHECKING:
    from semel.protocol.api.topics import ListOffset, TopicDescription


_NAMED_MAX: Final = 10


class _Commands(RenamedCommands):
    old_names = MappingProxyType({"grow": "add-partitions"})


class _Storage(StrEnum):
    """Where a topic's records are."""

    DISK = "disk"
    DISKLESS = "diskless"


app = command_app("Create, list, describe, configure and delete topics, and add partitions to them.", cls=_Commands)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command(epilog=examples("semel topic create orders --partitions 6 --config retention.ms=86400000"))
@fails_well
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option(help="How many partitions; -1: the node's num.partitions.", metavar="N")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            help="On how many nodes each partition is; -1: the node's default.replication.factor.", metavar="N"
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="NAME=VALUE", help="A setting, by Kafka's name. Can be given several times."
        ),
    ] = None,
    storage: Annotated[
        _Storage | None,
        typer.Option(
            help="Where its records are: on the disks of nodes, or diskless, in the remote storage and the metadata's "
            "database alone (diskless.enable). Default: as the node's log.diskless.enable says.",
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    if partitions == 0 or partitions < -1:
        raise UsageError(f"--partitions is 1 or more, or -1 for the node's num.partitions, not {partitions}")
    if replication_factor == 0 or replication_factor < -1:
        raise UsageError(
            "--replication-factor is 1 or more, or -1 for the node's default.replication.factor, not "
            f"{replication_factor}"
        )
    configs = parse_settings(config or [], "--config")
    if storage is not None:
        said = str(storage is _Storage.DISKLESS).lower()
        if configs.setdefault("diskless.enable", said) != said:
            raise UsageError(f"--storage {storage.value} contradicts --config diskless.enable: give one of them")
    with open_admin(bootstrap) as admin:
        if if_not_exists and any(topic.name == name for topic in admin.topics()):
            topic = admin.topic(name)
        else:
            topic = admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
            )
    if as_json:
        print_json(_as_json(topic))
    else:
        print(f"{topic.name} has {counted(len(topic.partitions), 'partition')}")


@app.command("list", epilog=examples("semel topic list --json"))
@fails_well
@watchable
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="List internal topics too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    with open_admin(bootstrap) as admin:
        topics = sorted(admin.topics(include_internal=internal), key=lambda topic: topic.name)
    if as_json:
        print_json([_as_json(topic) for topic in topics])
        return
    print_table(
        ["topic", "partitions", "id"],
        [(topic.name, len(topic.partitions), format_topic_id(topic.topic_id)) for topic in topics],
        empty="no topics; create one with `semel topic create NAME`",
    )


@app.command(epilog=examples("semel topic describe orders"))
@fails_well
@watchable
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions: who leads them, where they are, and their offsets; and its changed settings.

    Replicas are the nodes that a partition is on; those in sync have all that is acknowledged.
    """
    with open_admin(bootstrap) as admin:
        topic = admin.topic(name)
        tps = [TopicPartition(name, partition.partition) for partition in topic.partitions]
        from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel

        starts = admin.look_up_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
        # Offsets grow meanwhile: asked for in this order, none is beyond the next.
        stable = admin.look_up_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
        ends = admin.look_up_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP), isolation=IsolationLevel.READ_UNCOMMITTED)
        changed = [entry for entry in admin.topic_configs(name) if entry.source == "DYNAMIC_TOPIC"]
    errors = {
        tp: found for answer in (starts, ends, stable) for tp, found in answer.items() if isinstance(found, SemelError)
    }
    if as_json:
        partitions = [
            {
                "partition": tp.partition,
                "start": _offset(starts[tp]),
                "end": _offset(ends[tp]),
                "stable": _offset(stable[tp]),
                **({"error": state_of(errors[tp])} if tp in errors else {}),
            }
            for tp in tps
        ]
        configs = {entry.name: entry.value for entry in changed}
        print_json({**_as_json(topic), "offsets": partitions, "configs": configs})
        fail_for_partitions(errors, bootstrap)
        return
    print(f"{topic.name}  id {format_topic_id(topic.topic_id)}")
    for entry in changed:
        print(f"  {entry.name}={entry.value}")
    print_table(
        ["partition", "leader", "epoch", "replicas", "in sync", "start", "stable end", "end"],
        [
            (
                partition.partition,
                partition.leader_id if partition.leader_id != NO_LEADER else "none",
                partition.leader_epoch,
                _nodes(partition.replicas),
                _nodes(partition.isr),
                state_of(errors[tp]) if tp in errors else _offset(starts[tp]),
                _offset(stable[tp]),
                _offset(ends[tp]),
            )
            for tp, partition in zip(tps, topic.partitions, strict=True)
        ],
        empty="no partitions",
    )
    if switching := [partition.partition for partition in topic.partitions if partition.is_switching]:
        print(
            f"becomes diskless: {counted(len(switching), 'partition')} of {len(topic.partitions)} still on disks "
            f"({_nodes(switching[:_NAMED_MAX])}{', ...' if len(switching) > _NAMED_MAX else ''}). Where that does not "
            "change, `semel doctor` says why"
        )
    fail_for_partitions(errors, bootstrap)


@app.command(epilog=examples("semel topic add-partitions orders --partitions 12"))
@fails_well
def add_partitions(
    name: Name,
    partitions: Annotated[int, typer.Option(help="The new total number of partitions.", metavar="N")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add partitions. Keys then go to other partitions than before; existing records stay where they are."""
    with open_admin(bootstrap) as admin:
        admin.add_partitions(name, partitions)
    print(f"{name} has {counted(partitions, 'partition')}")


@app.command(epilog=examples("semel topic config orders --set retention.ms=3600000 --remove cleanup.policy"))
@fails_well
def config(
    name: Name,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting. Can be given several times."),
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Reset a setting to the default.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a topic's settings, or change them.

    With diskless.enable=true a topic becomes diskless while it is used: `semel topic describe` shows how far that is.
    """
    with open_admin(bootstrap) as admin:
        if set_ or remove:
            admin.alter_topic_configs(name, changes=parse_settings(set_ or [], "--set"), remove=remove or [])
        entries = admin.topic_configs(name)
    if as_json:
        print_json([{"name": entry.name, "value": entry.value, "source": entry.source} for entry in entries])
        return
    print_table(
        ["setting", "value", "from"],
        [(entry.name, entry.value, entry.source) for entry in entries],
        empty="no settings",
    )


@app.command(epilog=examples("semel topic delete-records orders:0 --before 1000"))
@fails_well
def delete_records(
    partition: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", help="One partition.")],
    before: Annotated[
        int, typer.Option(help="Delete the records before this offset; -1: all records.", metavar="OFFSET")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest records of a partition, up to an offset."""
    with open_admin(bootstrap) as admin:
        starts = admin.delete_records({parse_partition(partition): before})
    for tp, start in rows_of(starts):
        if as_json:
            print_json({"topic": tp.topic, "partition": tp.partition, "start": start})
        else:
            print(f"{partition_argument(tp)} now starts at offset {start}")


@app.command(epilog=examples("semel topic delete orders --yes"))
@fails_well
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic and all of its records."""
    what = f"{name} and all of its records"
    delete_when_sure(what, lambda admin: admin.delete_topic(name), bootstrap, done=f"{name} is deleted", yes=yes)


def _offset(found: ListOffset | SemelError) -> int | None:
    """Return an offset; None where it could not be read."""
    return None if isinstance(found, SemelError) else found.offset


def _nodes(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


def _as_json(topic: TopicDescription) -> dict[str, object]:
    return {
        "topic": topic.name,
        "id": format_topic_id(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader_id,
                "epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                **({"becomes_diskless": True} if partition.is_switching else {}),
            }
            for partition in topic.partitions
        ],
    }
