"""How a transaction that hangs on a partition may be ended, for each thing that its coordinator's log can say of it."""

from __future__ import annotations

import pytest

from semel.broker.diagnostics.hanging import judge
from semel.protocol.api.diagnostics import HangingEnd
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TopicPartition
from semel.txn_coordinator.outcome import HolderOutcome, Outcome

PLACE = TopicPartition("orders", 3)
REFUSED = {Outcome.COMMIT: "commit is decided", Outcome.ABORT: "abort is decided", Outcome.NOT_KNOWN: "no coordinator"}

ALLOWED = {
    (Outcome.COMMIT, HangingEnd.AS_DECIDED): True,
    (Outcome.ABORT, HangingEnd.AS_DECIDED): False,
    (Outcome.NOT_TOLD, HangingEnd.AS_COMMIT): True,
    (Outcome.NOT_TOLD, HangingEnd.AS_ABORT): False,
    (Outcome.NOT_KNOWN, HangingEnd.ABORT): False,
}


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("end", list(HangingEnd))
def test_T7_a_marker_never_contradicts_what_is_known(outcome: Outcome, end: HangingEnd) -> None:
    known = HolderOutcome(outcome, "" if outcome is Outcome.NOT_KNOWN else "pay")
    if (outcome, end) in ALLOWED:
        assert judge(known, PLACE, 12, end) is ALLOWED[outcome, end]
        return
    with pytest.raises(FatalError, match=REFUSED.get(outcome, "do not tell how any more")) as refused:
        judge(known, PLACE, 12, end)
    is_unknown = outcome is Outcome.NOT_KNOWN  # `semel txn finish` aborts it then
    assert refused.value.code is (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if is_unknown else ErrorCode.INVALID_TXN_STATE)
    assert "--partition orders:3 --start-offset 12" in refused.value.message, "the next step is named"
