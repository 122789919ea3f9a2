"""Scenarios about consumer groups of both protocols, and their offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from same_answers import Side, scenario

from semel.protocol.kafka.api import ApiKey

REBALANCE_IN_PROGRESS = 27
ABSENT_ID = b"\x01" * 16
SUBSCRIPTION = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"
"""Version 0, to no topics, with nothing else."""
ASSIGNMENT = SUBSCRIPTION
"""Version 0, of no partitions, which looks the same."""


async def join(at: Side, what: str, group: str, member: str = "", **more: Any) -> Any:
    """Join a group; where a member id has to be asked for first (KIP-394), that is done, too."""
    version = more.pop("version", at.version_of(ApiKey.JOIN_GROUP))
    protocols = [{"name": name, "metadata": SUBSCRIPTION} for name in more.pop("protocols", ("range",))]
    values = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": protocols,
        "reason": None,
    }
    values.update(more)
    answer = await at.ask(what, ApiKey.JOIN_GROUP, version=version, member_id=member, **values)
    if answer is not None and answer.error_code == 79:
        values.pop("what", None)
        answer = await at.ask(
            f"{what}, with its id", ApiKey.JOIN_GROUP, version=version, member_id=answer.member_id, **values
        )
    return answer


async def sync(at: Side, what: str, group: str, generation: int, member: str, **more: Any) -> Any:
    values = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }
    return await at.ask(what, ApiKey.SYNC_GROUP, **{**values, **more})


async def heartbeat(at: Side, what: str, group: str, generation: int, member: str, **more: Any) -> Any:
    values = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None, **more}
    return await at.ask(what, ApiKey.HEARTBEAT, **values)


async def leave(at: Side, what: str, group: str, *members: tuple[str, str | None]) -> None:
    if at.version_of(ApiKey.LEAVE_GROUP) < 3:
        await at.ask(what, ApiKey.LEAVE_GROUP, group_id=group, member_id=members[0][0])
    else:
        every = [{"member_id": each, "group_instance_id": instance, "reason": None} for each, instance in members]
        await at.ask(what, ApiKey.LEAVE_GROUP, group_id=group, members=every)


async def describe(at: Side, what: str, *groups: str) -> None:
    await at.ask(what, ApiKey.DESCRIBE_GROUPS, groups=groups, include_authorized_operations=False)


async def stable_group(at: Side, group: str, **more: Any) -> tuple[str, int]:
    """Make a group with one member. Returns the member and the generation."""
    joined = await join(at, "join", group, **more)
    member, generation = joined.member_id, joined.generation_id
    instance = more.get("group_instance_id")
    given = [{"member_id": member, "assignment": ASSIGNMENT}]
    await sync(at, "sync", group, generation, member, assignments=given, group_instance_id=instance)
    return member, generation


@scenario(ApiKey.JOIN_GROUP)
async def join_group(at: Side, version: int) -> None:
    group = at.name("group")
    for what, more in (
        ("empty group", {"group": ""}),
        ("unknown member", {"member": "nobody"}),
        ("session too short", {"session_timeout": 10}),
        ("session too long", {"session_timeout": 2**31 - 1}),
        ("no protocols", {"protocols": ()}),
        ("no protocol type", {"protocol_type": ""}),
        ("two protocols", {"group": at.name("two"), "protocols": ("range", "roundrobin")}),
    ):
        await join(at, what, **{"group": group, **more})
    member, generation = await stable_group(at, group)
    await describe(at, "stable", group)
    await join(at, "other type", group, protocol_type="connect")
    await join(at, "other protocol", group, protocols=("sticky",))
    await join(at, "unknown member of a group", group, member="nobody")
    rejoined = await join(at, "the leader joins again", group, member)
    await sync(at, "sync the older generation", group, generation, member)
    await sync(
        at, "sync", group, rejoined.generation_id, member, assignments=[{"member_id": member, "assignment": b"x"}]
    )
    if version >= 5:
        await static_members(at)


async def static_members(at: Side) -> None:
    """KIP-345: members with a name of their own."""
    group = at.name("static")
    named = {"group_instance_id": "one"}
    member, generation = await stable_group(at, group, **named)
    await heartbeat(at, "static heartbeat", group, generation, member, **named)
    await heartbeat(at, "other instance", group, generation, member, group_instance_id="two")
    await heartbeat(at, "other member", group, generation, "nobody", **named)
    again = await join(at, "G4: returns", group, **named)
    await heartbeat(at, "the one replaced", group, again.generation_id, member, **named)
    await join(at, "the one replaced joins", group, member, **named)
    await sync(at, "the one replaced syncs", group, again.generation_id, member, **named)
    await sync(at, "the new one syncs", group, again.generation_id, again.member_id, **named)
    await describe(at, "static member", group)
    await leave(at, "leave as another", group, ("nobody", "one"))
    await leave(at, "leave by name", group, ("", "one"))
    await describe(at, "left", group)


@scenario(ApiKey.SYNC_GROUP)
async def sync_group(at: Side, version: int) -> None:
    group = at.name("group")
    await sync(at, "unknown group", group, 1, "nobody")
    await sync(at, "empty group", "", 1, "nobody")
    joined = await join(at, "join", group)
    member, generation = joined.member_id, joined.generation_id
    await describe(at, "joined", group)
    await sync(at, "unknown member", group, generation, "nobody")
    await sync(at, "generation too high", group, generation + 1, member)
    await sync(at, "generation too low", group, generation - 1, member)
    await sync(at, "other type", group, generation, member, protocol_type="connect")
    await sync(at, "other protocol", group, generation, member, protocol_name="sticky")
    strangers = [{"member_id": "nobody", "assignment": b"x"}]
    await sync(at, "assigned to a stranger", group, generation, member, assignments=strangers)
    await sync(at, "again", group, generation, member, assignments=[{"member_id": member, "assignment": b"y"}])
    await describe(at, "synced", group)


@scenario(ApiKey.HEARTBEAT)
async def heartbeats(at: Side, version: int) -> None:
    group = at.name("group")
    await heartbeat(at, "unknown group", group, 1, "nobody")
    await heartbeat(at, "empty group", "", 1, "nobody")
    joined = await join(at, "join", group)
    member, generation = joined.member_id, joined.generation_id
    await heartbeat(at, "not synced", group, generation, member)
    await sync(at, "sync", group, generation, member)
    await heartbeat(at, "good", group, generation, member)
    await heartbeat(at, "too high", group, generation + 1, member)
    await heartbeat(at, "too low", group, generation - 1, member)
    await heartbeat(at, "minus one", group, -1, member)
    await heartbeat(at, "unknown member", group, generation, "nobody")
    await heartbeat(at, "no member", group, generation, "")
    second = asyncio.ensure_future(_joins_beside(at, group))
    while (await _quiet_heartbeat(at, group, generation, member)) == 0:  # noqa: ASYNC110  # the broker tells no other way
        await asyncio.sleep(0.05)
    await heartbeat(at, "rebalance", group, generation, member)
    beside = Side.beside(at)  # which of two equal members is named first is chance
    try:
        await join(beside, "join again", group, member)
    finally:
        await beside.close()
    await second
    await heartbeat(at, "the generation before", group, generation, member)


async def _joins_beside(at: Side, group: str) -> None:
    """A second member joins on a connection of its own. What it is answered is not compared: the order is chance."""
    kept = len(at.answers)
    beside = Side.beside(at)
    try:
        await join(beside, "second", group, on="second")
    finally:
        await beside.close()
    assert kept <= len(at.answers)


async def _quiet_heartbeat(at: Side, group: str, generation: int, member: str) -> int:
    beside = Side.beside(at)
    try:
        return int((await heartbeat(beside, "waiting", group, generation, member)).error_code)
    finally:
        await beside.close()


@scenario(ApiKey.LEAVE_GROUP)
async def leave_group(at: Side, version: int) -> None:
    group = at.name("group")
    await leave(at, "unknown group", group, ("nobody", None))
    await leave(at, "empty group", "", ("nobody", None))
    member, generation = await stable_group(at, group)
    await leave(at, "unknown member", group, ("nobody", None))
    if version >= 3:
        await leave(at, "none", group)
        await leave(at, "unknown instance", group, ("", "one"))
        await leave(at, "two", group, (member, None), ("nobody", None))
    else:
        await leave(at, "one", group, (member, None))
    await leave(at, "again", group, (member, None))
    await heartbeat(at, "after it", group, generation, member)
    await describe(at, "empty", group)


@scenario(ApiKey.DESCRIBE_GROUPS)
async def describe_groups(at: Side, version: int) -> None:
    group = at.name("group")
    await describe(at, "none")
    await describe(at, "absent", group)
    await describe(at, "empty name", "")
    await describe(at, "absent twice", group, group)
    await stable_group(at, group)
    await describe(at, "stable and absent", group, at.name("absent"))
    if version >= 3:
        await at.ask("operations", ApiKey.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=True)


@scenario(ApiKey.LIST_GROUPS)
async def list_groups(at: Side, version: int) -> None:
    group = at.name("group")
    member, _ = await stable_group(at, group)

    async def ask(what: str, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> None:
        """Only what is about this group."""
        response = await at.ask(what, ApiKey.LIST_GROUPS, states_filter=states, types_filter=types)
        name, api, used, answer = at.answers.pop()
        if response is not None:
            answer["groups"] = [each for each in answer["groups"] if each["group_id"] == group]
        at.answers.append((name, api, used, answer))

    await ask("all")
    for states in (("Stable",), ("stable",), ("Empty",), ("Sleeping",), ("Sleeping", "Stable")) if version >= 4 else ():
        await ask(f"states {states}", states)
    for types in (("classic",), ("Classic",), ("consumer",), ("strange",), ("share",)) if version >= 5 else ():
        await ask(f"types {types}", (), types)
    await leave(at, "leave", group, (member, None))
    await ask("empty")


@scenario(ApiKey.DELETE_GROUPS)
async def delete_groups(at: Side, version: int) -> None:
    group, other = at.name("group"), at.name("other")

    async def delete(what: str, *groups: str) -> None:
        await at.ask(what, ApiKey.DELETE_GROUPS, groups_names=groups)

    await delete("none")
    await delete("absent", group)
    await delete("empty name", "")
    member, _ = await stable_group(at, group)
    await stable_group(at, other)
    await delete("in use", group)
    await delete("in use and absent", group, at.name("absent"))
    await leave(at, "leave", group, (member, None))
    await delete("twice", group, group)
    await delete("again", group)
    await describe(at, "deleted", group)


def _offsets(at_version: int, *wanted: tuple[str, int, int], topic_id: bytes = ABSENT_ID, **more: Any) -> list[Any]:
    return [
        {
            "name": name,
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": offset,
                    "committed_leader_epoch": more.get("epoch", -1),
                    "committed_metadata": more.get("metadata", "m"),
                }
            ],
        }
        for name, number, offset in wanted
    ]


@scenario(ApiKey.OFFSET_COMMIT)
async def offset_commit(at: Side, version: int) -> None:
    topic, group = await at.topic("one", 3), at.name("group")
    topic_id = await at.topic_id(topic)

    async def commit(
        what: str, *wanted: tuple[str, int, int], generation: int = -1, member: str = "", name: str = group, **more: Any
    ) -> None:
        instance = more.pop("instance", None)
        values = {
            "group_id": name,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": instance,
            "retention_time": -1,
        }
        values["topics"] = _offsets(version, *wanted, topic_id=more.pop("id_", topic_id), **more)
        await at.ask(what, ApiKey.OFFSET_COMMIT, **values)

    async def fetched(what: str) -> None:
        await at.ask(what, ApiKey.OFFSET_FETCH, version=8, groups=[_fetch_of(group)], require_stable=False)

    await commit("none")
    await commit("generation of none", (topic, 0, 1), generation=3)
    await commit("member of none", (topic, 0, 1), member="nobody")
    await commit("unknown member", (topic, 0, 1), generation=3, member="nobody")
    await commit("simple", (topic, 0, 5))
    await commit("empty group", (topic, 0, 5), name="")
    await commit("absent topic", (at.name("absent"), 0, 5), id_=ABSENT_ID)
    await commit("absent partition", (topic, 9, 5))
    await commit("negative partition", (topic, -1, 5))
    await commit("negative offset", (topic, 0, -1))
    await commit("very negative offset", (topic, 0, -7))
    await commit("past the end", (topic, 0, 10**12))
    await commit("twice", (topic, 0, 6), (topic, 0, 7))
    await commit("good and bad", (topic, 0, 8), (topic, 9, 8))
    await commit("null metadata", (topic, 1, 5), metadata=None)
    await commit("empty metadata", (topic, 1, 5), metadata="")
    await commit("longest metadata", (topic, 2, 5), metadata="x" * 4096)
    await commit("metadata too long", (topic, 2, 6), metadata="x" * 4097)
    await commit("with an epoch", (topic, 2, 7), epoch=0)
    await fetched("simple ones")
    member, generation = await stable_group(at, group)
    await commit("of the member", (topic, 0, 20), generation=generation, member=member)
    await commit("too old", (topic, 0, 21), generation=generation - 1, member=member)
    await commit("too new", (topic, 0, 22), generation=generation + 1, member=member)
    await commit("of a stranger", (topic, 0, 23), generation=generation, member="nobody")
    await commit("simple, in use", (topic, 0, 24))
    await commit("a member, no generation", (topic, 0, 25), member=member)
    if version >= 7:
        await commit("unknown instance", (topic, 0, 26), generation=generation, member=member, instance="one")
    await fetched("of the member")


def _fetch_of(group: str, topics: Any = None, member: str | None = None, epoch: int = -1) -> dict[str, Any]:
    return {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": topics}


@scenario(ApiKey.OFFSET_FETCH)
async def offset_fetch(at: Side, version: int) -> None:
    topic, group = await at.topic("one", 3), at.name("group")
    topic_id = await at.topic_id(topic)
    committed = _offsets(8, (topic, 0, 5), (topic, 1, 0), epoch=0)
    key = ApiKey.OFFSET_COMMIT
    await at.ask(
        "commit", key, version=8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=committed
    )

    async def fetch(
        what: str,
        name: str,
        *wanted: tuple[str, tuple[int, ...]],
        id_: bytes = topic_id,
        every: bool = False,
        **more: Any,
    ) -> None:
        topics = [{"name": each, "topic_id": id_, "partition_indexes": numbers} for each, numbers in wanted]
        chosen = None if every else topics
        if version >= 8:
            values: dict[str, Any] = {"groups": [_fetch_of(name, chosen, **more)] if name else []}
        else:
            values = {"group_id": name, "topics": chosen}
        for stable in (False, True) if version >= 7 else (False,):
            await at.ask(f"{what}, {stable}", ApiKey.OFFSET_FETCH, require_stable=stable, **values)

    await fetch("good", group, (topic, (0, 1, 2)))
    await fetch("no partitions", group, (topic, ()))
    await fetch("a partition twice", group, (topic, (0, 0)))
    await fetch("a topic twice", group, (topic, (0,)), (topic, (0,)))
    await fetch("absent partition", group, (topic, (9, -1)))
    await fetch("absent topic", group, (at.name("absent"), (0,)), id_=ABSENT_ID)
    await fetch("no topics", group)
    await fetch("absent group", at.name("absent"), (topic, (0,)))
    if version >= 2:
        await fetch("all", group, every=True)
        await fetch("all of an absent group", at.name("absent"), every=True)
    await fetch("no group", "", (topic, (0,)))
    if version >= 8:
        twice = [_fetch_of(group), _fetch_of(group)]
        await at.ask("a group twice", ApiKey.OFFSET_FETCH, groups=twice, require_stable=False)
        await at.ask("empty name", ApiKey.OFFSET_FETCH, groups=[_fetch_of("")], require_stable=False)
    if version >= 9:
        await fetch("unknown member", group, (topic, (0,)), member="nobody", epoch=1)
        await fetch("unknown member, no epoch", group, (topic, (0,)), member="nobody", epoch=-1)
        await fetch("an epoch alone", group, (topic, (0,)), epoch=3)


@scenario(ApiKey.OFFSET_DELETE)
async def offset_delete(at: Side, version: int) -> None:
    topic, group = await at.topic("one", 3), at.name("group")

    async def delete(what: str, name: str, *wanted: tuple[str, int]) -> None:
        topics = [{"name": each, "partitions": [{"partition_index": number}]} for each, number in wanted]
        await at.ask(what, ApiKey.OFFSET_DELETE, group_id=name, topics=topics)

    await delete("absent group", group, (topic, 0))
    await delete("empty group", "", (topic, 0))
    committed = _offsets(8, (topic, 0, 5), (topic, 1, 6), epoch=0)
    key = ApiKey.OFFSET_COMMIT
    await at.ask(
        "commit", key, version=8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=committed
    )
    await delete("good", group, (topic, 0))
    await delete("again", group, (topic, 0))
    await delete("absent partition", group, (topic, 9))
    await delete("absent topic", group, (at.name("absent"), 0))
    await delete("none", group)
    await at.ask("left", ApiKey.OFFSET_FETCH, version=8, groups=[_fetch_of(group)], require_stable=False)
    await delete("the last", group, (topic, 1))
    await describe(at, "after the last", group)
    used = at.name("used")
    await stable_group(at, used)
    await delete("in use", used, (topic, 0))


async def beat(at: Side, what: str, group: str, member: str, epoch: int, **more: Any) -> Any:
    values = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    return await at.ask(what, ApiKey.CONSUMER_GROUP_HEARTBEAT, **{**values, **more})


@scenario(ApiKey.CONSUMER_GROUP_HEARTBEAT)
async def consumer_group_heartbeat(at: Side, version: int) -> None:
    topic, group = await at.topic("one", 2), at.name("group")
    joins: dict[str, Any] = {"rebalance_timeout": 30_000, "subscribed_topic_names": [topic], "topic_partitions": []}
    one = "member-one"
    await beat(at, "empty group", "", one, 0, **joins)
    await beat(at, "unknown group", group, one, 5)
    await beat(at, "leaves an unknown group", group, one, -1)
    await beat(at, "no timeout", group, one, 0, **{**joins, "rebalance_timeout": -1})
    await beat(at, "no topics", group, one, 0, **{**joins, "subscribed_topic_names": None})
    await beat(at, "owned when it joins", group, one, 0, **{**joins, "topic_partitions": None})
    await beat(at, "unknown assignor", group, one, 0, **joins, server_assignor="nothing")
    await beat(at, "empty assignor", group, one, 0, **joins, server_assignor="")
    await beat(at, "empty instance", group, one, 0, **joins, instance_id="")
    await beat(at, "empty rack", group, one, 0, **joins, rack_id="")
    await beat(at, "epoch -3", group, one, -3, **joins)
    await beat(at, "static leave without a name", group, one, -2)
    if version >= 1:
        await beat(at, "no member id", group, "", 0, **joins)
        await beat(at, "bad regex", group, one, 0, **{**joins, "subscribed_topic_regex": "("})
    joined = await beat(at, "joins", group, one, 0, **joins)
    epoch = joined.member_epoch
    await beat(at, "stays", group, one, epoch)
    await beat(at, "joins again", group, one, 0, **joins)
    await beat(at, "epoch too high", group, one, epoch + 5)
    await beat(at, "unknown member", group, "nobody", epoch)
    await beat(at, "unknown member leaves", group, "nobody", -1)
    await beat(
        at, "strange topics owned", group, one, epoch, topic_partitions=[{"topic_id": ABSENT_ID, "partitions": [0]}]
    )
    await at.ask("described", ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group], include_authorized_operations=False)
    await describe(at, "described as the older kind", group)
    await at.ask("delete it in use", ApiKey.DELETE_GROUPS, groups_names=[group])
    await _commits_of_members(at, group, topic, one, epoch)
    await join(at, "joins in the older way", group, protocols=("range",))
    await heartbeat(at, "an older heartbeat", group, epoch, one)
    await beat(at, "leaves", group, one, -1)
    await beat(at, "after leaving", group, one, epoch)
    await at.ask("empty", ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group], include_authorized_operations=False)
    classic = at.name("classic")
    await stable_group(at, classic)
    await beat(at, "joins a group of bytes", classic, one, 0, **joins)
    await at.ask("classic", ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[classic], include_authorized_operations=False)
    await _static_beats(at, joins)


async def _commits_of_members(at: Side, group: str, topic: str, member: str, epoch: int) -> None:
    for what, who, number in (
        ("of the member", member, epoch),
        ("too new", member, epoch + 1),
        ("too old", member, epoch - 1),
        ("of a stranger", "nobody", epoch),
        ("simple", "", -1),
    ):
        values = {"group_id": group, "generation_id_or_member_epoch": number, "member_id": who}
        for version in (8, 9):
            offsets = _offsets(8, (topic, 0, 5))
            await at.ask(f"commit {what}", ApiKey.OFFSET_COMMIT, version=version, topics=offsets, **values)
        fetched = [_fetch_of(group, None, who or None, number)]
        await at.ask(f"fetch {what}", ApiKey.OFFSET_FETCH, version=9, groups=fetched, require_stable=False)


async def _static_beats(at: Side, joins: dict[str, Any]) -> None:
    group, named = at.name("static"), {"instance_id": "one"}
    joined = await beat(at, "static joins", group, "static-1", 0, **joins, **named)
    await beat(at, "another takes its name", group, "static-2", 0, **joins, **named)
    await beat(at, "static away", group, "static-1", -2, **named)
    await beat(at, "static returns", group, "static-2", 0, **joins, **named)
    await beat(at, "the one before", group, "static-1", joined.member_epoch, **named)
    await at.ask("statics", ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group], include_authorized_operations=False)
    await beat(at, "static leaves", group, "static-2", -1, **named)


@scenario(ApiKey.CONSUMER_GROUP_DESCRIBE)
async def consumer_group_describe(at: Side, version: int) -> None:
    group = at.name("group")
    for what, groups in (("none", []), ("absent", [group]), ("empty name", [""]), ("twice", [group, group])):
        await at.ask(what, ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=groups, include_authorized_operations=False)
