# cython: annotation_typing=False, boundscheck=True, wraparound=True
"""What many batches that lie one behind the other have in common, so that a log takes them in together.

Compiled with the C types of batch_runs.pxd, because a start after a crash may find a million batches, or interpreted.
"""

from __future__ import annotations

from semel.protocol.batch_header import CONTROL, BatchHeader
from semel.protocol.int_bounds import INT64_MAX


def following(headers: list[BatchHeader], begin: int, end_offset: int, upto: int) -> int:
    """Return how many batches from number `begin` on are of data, have offsets that only grow from `end_offset` on, and
    end at `upto` or before.
    """
    count = len(headers)
    number = begin
    while number < count:
        header = headers[number]
        next_offset = header.base_offset + header.last_offset_delta + 1
        if header.base_offset < end_offset or next_offset > upto or header.attributes & CONTROL:
            break
        end_offset = next_offset
        number += 1
    return number - begin


def first_reaching(headers: list[BatchHeader], offset: int) -> int:
    """Return the number of the first batch that ends at `offset` or behind it."""
    count = len(headers)
    number = 0
    while number < count:
        header = headers[number]
        if header.base_offset + header.last_offset_delta >= offset:
            break
        number += 1
    return number


def first_overlapping(headers: list[BatchHeader], end_offset: int) -> int:
    """Return the number of the first batch that begins before the one before it ends, or the first of all before
    `end_offset`.
    """
    count = len(headers)
    number = 0
    while number < count:
        header = headers[number]
        if header.base_offset < end_offset:
            break
        end_offset = header.base_offset + header.last_offset_delta + 1
        number += 1
    return number


def largest_timestamp(headers: list[BatchHeader]) -> int:
    """Return the largest timestamp in milliseconds of batches, of which there is one at least."""
    return stretch(headers, 0, INT64_MAX)[2]


def first_beyond_epoch(headers: list[BatchHeader], begin: int, leader_epoch: int, start_offset: int) -> int:
    """Return the number of the first batch from number `begin` on that is of another leader epoch, or comes before
    `start_offset`.
    """
    count = len(headers)
    number = begin
    while number < count:
        header = headers[number]
        if header.leader_epoch != leader_epoch or header.base_offset < start_offset:
            break
        number += 1
    return number


def stretch(headers: list[BatchHeader], begin: int, room: int) -> tuple[int, int, int, int]:
    """Return how many batches from number `begin` on an index tells of together, where `room` more bytes need no entry,
    their bytes, their largest timestamp, and the last offset of the first batch that has it.

    It is one batch at least; the others begin within `room`.
    """
    header = headers[begin]
    size = header.size_bytes
    largest = header.max_timestamp_ms
    offset = header.base_offset + header.last_offset_delta
    count = len(headers)
    number = begin + 1
    while number < count and size <= room:
        header = headers[number]
        if header.max_timestamp_ms > largest:
            largest = header.max_timestamp_ms
            offset = header.base_offset + header.last_offset_delta
        size += header.size_bytes
        number += 1
    return number - begin, size, largest, offset
