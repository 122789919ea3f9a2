"""Where a query's first batch starts, kept in the checkpoint with its end.

Spark keeps where a batch ends, and asks the source again for the start of the first one when it repeats it: by then the
latest offset is another, and so may be that of a group. So the source adds the start to the first batch's end, as a
topic without partitions whose name no topic can have: Kafka's source, and older versions of this one, pass it over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.spark.options import offsets_from_json

_MARK: Final = "@start "


def with_first_start(end: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the end of the first batch, with its start in it. Both have Kafka's shape."""
    return {**end, _MARK + json.dumps(start, separators=(",", ":")): {}}


def first_start(end: Mapping[str, Any], what: str) -> dict[TopicPartition, int] | None:
    """Return the start that the end of a first batch holds; None where it holds none. `what` names it in errors."""
    text = next((name for name in end if name.startswith(_MARK)), None)
    if text is None:
        return None
    try:
        start = json.loads(text.removeprefix(_MARK))
    except ValueError:
        start = None
    if not isinstance(start, dict):
        raise UsageError(f"{what}: {text!r} does not say where the first batch starts: it was damaged")
    return offsets_from_json(start, what)
