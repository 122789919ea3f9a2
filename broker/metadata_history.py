"""Holds the metadata against what this node has applied before: it never goes back without an operator's word (R10).

While the node runs, `Metadata` does so at every look at its database. Here it is done across restarts, by the position
that the data directory remembers; and here are the words for both.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor
from typing import Final

from semel.broker.controller.metadata_loss import beyond_lost_epochs, raised_epochs
from semel.broker.metadata.applied_position import POSITION_FILE, Applied, AppliedPosition, read_applied
from semel.broker.metadata.chain import MetadataWentBackError
from semel.broker.metadata.changes import Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.producer_ids import beyond_lost, skipped_up_to
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.metadata")

OPTION = "--accept-metadata-loss"
_EVERY_S: Final = 1.0
"""How often what was applied is remembered, where the metadata is on the same disk."""


class MetadataHistory:
    """Checks the metadata at a start, and remembers from then on how far it was applied."""

    def __init__(
        self, storage: Storage, data_dir: str, node_id: int, executor: Executor | None, *, accepts_loss: bool
    ) -> None:
        self._storage = storage
        self._data_dir = data_dir
        self._node_id = node_id
        self._path = f"{data_dir}/{POSITION_FILE}"
        self._accepts_loss = accepts_loss
        self._applied = AppliedPosition(storage, self._path, executor)
        self.loss_is_accepted = False
        """Whether the metadata lacks what this node had applied, and the node continues all the same."""
        self._producer_ids_from = 0
        self._known_epoch = self._epochs_from = 0
        """The highest leader epoch that this node knew of before the loss, and where they continue."""
        self._metadata: Metadata | None = None
        """That is followed, in a database elsewhere."""

    async def check(self, metadata: Metadata) -> None:
        """Raises `NodeStartError` where the metadata lacks what this node had applied, unless that is accepted."""
        known = read_applied(self._storage, self._path)
        # Another cluster's directory is refused later, in words of its own.
        if known is not None and known.cluster_id == metadata.image.cluster_id:
            try:
                await metadata.confirm(known.position)
            except MetadataWentBackError as error:
                if not self._accepts_loss:
                    raise NodeStartError(self.advice(error), StartFailure.METADATA) from error
                _log.warning("%s. As %s says, the changes that are missing are given up", error.message, OPTION)
                self.loss_is_accepted = True
                await self._skip_what_was_given(known, metadata.image)
        if self._accepts_loss and not self.loss_is_accepted:
            _log.warning("%s: the metadata has all that this node had applied, so nothing is given up", OPTION)

    async def _skip_what_was_given(self, known: Applied, image: MetadataImage) -> None:
        """Choose the next producer id and leader epoch, and remember them before any is given: the database may lose
        this as well.

        The position stays: a crash must find the loss again. Raises `NodeStartError`.
        """
        self._producer_ids_from = beyond_lost(max(known.next_producer_id, image.next_producer_id))
        self._known_epoch = known.highest_leader_epoch
        self._epochs_from = beyond_lost_epochs(max(known.highest_leader_epoch, image.highest_leader_epoch))
        remembered = known._replace(
            next_producer_id=self._producer_ids_from,
            highest_leader_epoch=max(known.highest_leader_epoch, image.highest_leader_epoch, self._epochs_from),
        )
        try:
            await self._applied.write(remembered)
        except OSError as error:
            raise NodeStartError(
                f"{self._path} can't be written: {error}. Without it, a further loss could give producer ids twice. "
                f"Fix this, and start the node with {OPTION} again",
                StartFailure.DATA_FOLDER,
            ) from error

    def changes_of_registration(self, image: MetadataImage) -> list[Change]:
        """Return what is changed together with the registration: producer ids that lost changes may have given."""
        return skipped_up_to(self._producer_ids_from, image, self._node_id)

    def partitions_after_loss(self, image: MetadataImage) -> list[PartitionChanged]:
        """Return what the registration changes in all partitions, where several nodes share the metadata.

        Nothing where no loss is accepted, and where another node has done it: it was told of the same loss.
        """
        return raised_epochs(image, self._known_epoch, self._epochs_from) if self.loss_is_accepted else []

    async def follow(self, metadata: Metadata, *, is_in_folder: bool) -> None:
        """Remember from now on what is applied. Not before what was lost is dealt with, and the node has registered: a
        crash must find it again.

        is_in_folder: a database in the folder is lost with the folder, so its changes are remembered at leisure. One
            elsewhere may lose its last changes alone: what is applied so far has to be on the disk now
        Raises `NodeStartError` where the disk does not take that.
        """
        metadata.add_listener(lambda _, image: self._applied.note(image))
        if is_in_folder:
            self._applied.pause_s = _EVERY_S
            self._applied.note(metadata.image)
            return
        self._metadata = metadata
        try:
            await self.remembered()
        except OSError as error:
            raise NodeStartError(
                f"{self._path} can't be written: {error}. Without it, a database that loses its last changes could not "
                "be told from one in which topics were deleted. Fix this, and start the node again",
                StartFailure.DATA_FOLDER,
            ) from error

    async def remembered(self) -> None:
        """Wait until the disk has what is applied by now, where the database is elsewhere. Raises `OSError`.

        New logs wait for this: where the database loses their topics afterwards, the next start finds out (D6).
        """
        if self._metadata is not None:
            await self._applied.remembered(self._metadata.image)

    def advice(self, error: MetadataWentBackError) -> str:
        """Return what went wrong with the next steps."""
        return (
            f"{error.message}. Bring the database back with all of its changes (the server that has them, or a newer "
            "copy), and start the node again. If they are gone for good, start it once with "
            f"`semel serve --data-dir {self._data_dir} {OPTION}`: the node then continues from what the database has, "
            "and sets aside the directories of partitions that it does not know"
        )

    async def went_back(self, error: MetadataWentBackError) -> MetadataWentBackError:
        """Return the error that the node fails with, once the next start is sure to find out, too."""
        await self._applied.flush()
        return MetadataWentBackError(self.advice(error))

    async def close(self) -> None:
        """Write what is not written yet."""
        await self._applied.close()

    def abandon(self) -> None:
        """Let everything go, as a killed process does."""
        self._applied.abandon()
