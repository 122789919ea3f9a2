"""What a dry run of a start did to a file, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.broker.inspection.dry_run import DryRun
from semel.broker.inspection.overlay import OverlayStorage
from semel.broker.log.batch_scan import FAR_BYTES

LEFT: Final = "leaves it as it is"
REFUSES: Final = "refuses, see above"


@dataclass(frozen=True, slots=True)
class DryRunOutcome:
    """Compares the folder as it is with what the dry run made of it."""

    before: OverlayStorage
    dry_run: DryRun

    @property
    def refused(self) -> bool:
        return self.dry_run.refusal is not None

    def is_kept(self, path: str, position: int = 0, size: int = -1) -> bool:
        """Say whether the bytes from `position` on, `size` of them or all, are the same after the start."""
        after = self.dry_run.storage
        if not self.before.exists(path) or not after.exists(path):
            return self.before.exists(path) is after.exists(path)
        if not after.is_changed(path):
            return True
        one, other = self.before.open(path), after.open(path)
        try:
            end = one.size() if size < 0 else position + size
            if other.size() < end or (size < 0 and other.size() != end):
                return False
            while position < end:
                take = min(FAR_BYTES, end - position)
                if one.read_at(take, position) != other.read_at(take, position):
                    return False
                position += take
            return True
        finally:
            one.close()
            other.close()

    def of_index(self, path: str) -> str:
        """What happens to an index, or another file that can be made again."""
        if self.refused:
            return REFUSES
        if not self.dry_run.storage.exists(path) and self.before.exists(path):
            return "removes it"
        return LEFT if self.is_kept(path) else "builds it again"

    def of_batch(self, path: str, position: int, size: int) -> str:
        """What happens to bytes of a log."""
        if self.refused:
            return REFUSES
        after = self.dry_run.storage
        if not after.exists(path):
            return "removes the segment"
        if self.is_kept(path, position, size):
            return "leaves it; readers of these offsets are told that they can't be read (CORRUPT_MESSAGE)"
        file = after.open(path)
        try:
            end = file.size()
        finally:
            file.close()
        if end <= position:
            return f"cuts the segment at position {end}"
        return "puts other batches in its place: what the journal has, or a batch without records"
