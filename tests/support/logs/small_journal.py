"""A journal of small files on a simulated disk."""

from __future__ import annotations

from uuid import UUID

from semel.broker.log.journal import JournalConfig
from semel.protocol.ids import TopicId
from semel.runtime.simulated_storage import SimulatedStorage

TOPIC = TopicId(UUID(int=7))
FOLDER = "/d/journal"
SMALL = JournalConfig(
    journal_file_bytes=600,
    journal_buffer_max_bytes=400,
    journal_direct_write_bytes=200,
    journal_unsynced_max_bytes=1 << 20,
)


def new_storage(seed: int = 0) -> SimulatedStorage:
    storage = SimulatedStorage(seed)
    storage.make_folder("/d")
    storage.sync_folder("/")
    return storage
