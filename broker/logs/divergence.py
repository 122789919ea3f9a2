"""What a follower does about a log that is not its leader's (R3, KIP-101, KIP-279, KIP-595)."""

from __future__ import annotations


def cut_to_follow(diverging_end: int, own_end: int, log_end_offset: int) -> int:
    """Return the offset to cut at, by epochs alone and never by high watermarks.

    After the cut the follower asks again: the answer says where the logs part next, if they still do.

    diverging_end: where the leader's largest epoch up to the one that was asked about ended in its log
    own_end:       where the follower's largest epoch up to that one ended in its own
    """
    # Also where this log has an older epoch there: beyond the leader's end are only epochs that this log does not have,
    # and beyond its own end only epochs that the leader does not have.
    return min(own_end, diverging_end, log_end_offset)


def is_compacted_away(cut: int, high_watermark: int, diverging_end: int, *, is_compacted: bool) -> bool:
    """Say whether logs part below what is committed here only because compaction removed the leader's records there.

    A leader that copied a compacted log does not know of epochs of which nothing was left. Where its older epoch ends
    at the follower's high watermark or behind it, the leader has, or had, all that is committed here: the follower
    keeps that, and continues behind it. A leader whose epoch ends before that would lack committed records (R4).

    cut: what `cut_to_follow` says
    """
    return is_compacted and cut < high_watermark <= diverging_end
