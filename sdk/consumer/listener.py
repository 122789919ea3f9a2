"""What an application may be told of its partitions."""

from __future__ import annotations

from collections.abc import Iterable

from semel.protocol.ids import TopicPartition


class RebalanceListener:
    """Told of changes of a consumer's partitions, inside of its polls. Override what you need.

    >>> class Cache(RebalanceListener):
    ...     def on_revoked(self, partitions):
    ...         print("save what belongs to", sorted(map(str, partitions)))
    """

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """These were added; reading them begins after this returns. Seek here to begin at a place of your own."""

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """These go to another member after this returns; committing for them is still possible."""

    def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """These may have gone already: the session ended. Committing for them fails."""
