"""The cast of worlds with transactions: which programs there are, and how each speaks with the nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from simulation.actors import OUTPUT, Actor
from simulation.filterer import Filterer, has_filterer
from simulation.group_watch import GroupWatch, draw_group
from simulation.kafka_actors import KafkaFeeder, KafkaReader, KafkaRemaker, KafkaTransformer, KafkaWriter
from simulation.kafka_deleter import KafkaDeleter, has_deleter
from simulation.kafka_dropper import KafkaDropper, KafkaHasty, has_dropper
from simulation.kafka_leaver import KafkaLeaver, has_leaver
from simulation.kafka_lister import KafkaLister
from simulation.kafka_membership import KafkaMember
from simulation.kafka_offsets import KafkaMover
from simulation.plans import draw_late_answers
from simulation.sdk_observers import Asker, Keeper, Reader
from simulation.sdk_pipelines import Feeder, HandTransformer, Transformer
from simulation.sdk_writers import Sharer, Writer
from simulation.two_phase import Preparer, has_preparer

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

KAFKA_SHARES = (0.0, 0.5, 0.8)
"""How many of a world's clients speak Kafka's protocol, and not the SDK's."""
KEEPER_SHARE = 0.6
"""How many worlds have somebody who commits the places of groups without members."""
MOVER_SHARE = 0.3
"""How many have somebody who moves such groups, in transactions and without, and asks where they stand."""
LISTER_SHARE = 0.3
"""How many have somebody who asks where partitions begin and end, and for offsets by time."""


def draw_cast(world: World, ledger: Ledger, chance: random.Random, count: int) -> list[Actor]:
    """Draw the programs of a world whose topics have `count` partitions each."""
    think_s = chance.choice((1.5, 3.0, 6.0))
    kafka_share = chance.choice(KAFKA_SHARES)

    def speaks_kafka() -> bool:
        return chance.random() < kafka_share

    cast: list[Actor] = [(KafkaFeeder if speaks_kafka() else Feeder)(world, ledger, "feeder", count, think_s)]
    names = ("transformer-1", "transformer-2")
    if speaks_kafka():
        cast += [KafkaTransformer(world, ledger, name, count, think_s) for name in names]
    else:
        cast += [chance.choice((Transformer, HandTransformer))(world, ledger, name, count) for name in names]
    cast.append((KafkaWriter if speaks_kafka() else Writer)(world, ledger, "writer", count, think_s))
    if not speaks_kafka():
        cast.append(Sharer(world, ledger, "sharer", count, 2 * think_s))
    if speaks_kafka() and chance.random() < 0.4:
        cast.append(KafkaRemaker(world, ledger, "remaker", count, think_s))
    if speaks_kafka():
        cast.append(KafkaReader(world, ledger, "reader", count, think_s))
    else:
        cast.append(Reader(world, ledger, "reader", {OUTPUT: count}))
    writers = [actor for actor in cast if isinstance(actor, (Writer, Sharer))]
    if writers:
        cast.append(Asker(world, ledger, "asker", writers, think_s))
    if chance.random() < KEEPER_SHARE:
        cast.append(Keeper(world, ledger, "keeper", think_s))
    if random.Random(f"mover of {world.seed}").random() < MOVER_SHARE:
        cast.append(KafkaMover(world, ledger, "mover", count, think_s))
    if random.Random(f"lister of {world.seed}").random() < LISTER_SHARE:
        cast.append(KafkaLister(world, ledger, "lister", count, think_s))
    group = draw_group(world.seed)
    if group is not None:
        watch = GroupWatch(world, ledger, group, count)
        cast += [
            KafkaMember(watch, f"member-{number}", count, is_static=is_static)
            for number, is_static in enumerate(group.static, start=1)
        ]
    if has_deleter(world):
        cast.append(KafkaDeleter(world, ledger, "deleter", count, think_s))
    if has_leaver(world):
        cast.append(KafkaLeaver(world, ledger, "leaver", count, think_s))
    if has_filterer(world):
        cast.append(Filterer(world, ledger, "filterer", count))
    if has_preparer(world):
        cast.append(Preparer(world, ledger, "preparer", count, think_s))
    if has_dropper(world):
        cast.append(KafkaDropper(world, ledger, "dropper", count, think_s))
    if len(world.nodes) > 1 and draw_late_answers(world.seed):
        cast.append(KafkaHasty(world, ledger, "hasty", count, think_s))
    return cast


def watch_of(cast: Iterable[Actor]) -> GroupWatch | None:
    """Return what watches over the group of those whose only job is membership, if there are any."""
    return next((actor.watch for actor in cast if isinstance(actor, KafkaMember)), None)


def group_settings(seed: int) -> dict[str, Any]:
    """Return what nodes are told of that group, in worlds that have it."""
    group = draw_group(seed)
    return {} if group is None else group.settings


SOURCES = (Feeder, Writer, Sharer, KafkaFeeder, KafkaWriter)
"""Who writes of its own accord: they come to an end first."""
