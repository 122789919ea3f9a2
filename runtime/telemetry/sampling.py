"""What OpenTelemetry's own samplers drop for certain, so that nothing is begun for it. Nodes and clients share it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.context import Context

_KNOWN_SAMPLERS: Final = re.compile(
    r"(?:ParentBased|root|(?:local|remote)Parent(?:Not)?Sampled|Always(?:On|Off)Sampler|TraceIdRatioBased"
    r"|[{},:.\d e-])+"
)


class SamplerProbe:
    """Looks ahead of a provider's sampler, where that is made of OpenTelemetry's own; others are always asked."""

    def __init__(self, provider: object) -> None:
        sampler: Any = getattr(provider, "sampler", None)
        description = "?" if sampler is None else str(sampler.get_description())
        self._sampler = sampler if _KNOWN_SAMPLERS.fullmatch(description) else None

    def drops(self, context: Context | None, name: str) -> bool:
        """Whether nothing that begins in a context is sampled: the lowest trace id passes every ratio but 0."""
        if self._sampler is None:
            return False
        from opentelemetry.context import Context as Empty

        decided = self._sampler.should_sample(Empty() if context is None else context, 0, name)
        return not decided.decision.is_recording()
