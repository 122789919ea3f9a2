"""What the two faces of the administrator's client have in common: their options."""

from __future__ import annotations

from collections.abc import Sequence

from semel.sdk.admin.core import AdminCore
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions, NotPicklable, checked_names


class AdminBase(NotPicklable):
    """An administrator's client without a way to wait."""

    _in_place_of_pickling = "it owns a thread and connections; make one in each process or worker, where it is used"

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] = "localhost:9094",
        *,
        client_id: str = "semel",
        api_timeout_ms: int = 30_000,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 3_000,
    ) -> None:
        options = ClientOptions.checked(
            bootstrap,
            client_id=client_id,
            api_timeout_ms=api_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._core = AdminCore(ClientCore("Admin", options))
