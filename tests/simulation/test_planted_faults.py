"""The simulator finds faults: each of its table, planted in a copy of the checkout.

The recorded seed is tried first. It moves when the product or the world takes one step more: then the first seeds are.
A fault that few worlds show would often be missed by those, and one that keeps worlds from ending takes long: their
tests are those of `make test-long`. Of the others a tenth are planted, drawn by the commit; `make test-long` plants all
of them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest
from mutants.sample_seed import sample_seed

from simulation.planted_table import FIRST_SEEDS, PlantedFault, read_table
from simulation.planting import Field
from simulation.runs import ONE_NODE

TABLE = read_table()
SEEDS = int(os.environ.get("SEMEL_PLANTED_SEEDS", "60"))
"""So many may be tried where the recorded one is clean; a quarter of them with several nodes, which take longer."""
MISSED_MAX: Final = 0.001
"""A fault that all of these would miss more often is not planted here: such a test would fail without a reason."""
NOT_FINISHED: Final = "not finished"
"""Such a world runs until its patience is over, which takes a minute and more."""
FOUND = [fault for fault in TABLE.faults if fault.seed is not None]
PLANTS_ALL: Final = "SEMEL_PLANTED_SEEDS" in os.environ


def _of_this_commit() -> set[str]:
    """Return the ids of the faults that are planted in this checkout: a tenth of those that are found soon."""
    soon = [fault.id for fault in FOUND if _is_found_soon(fault)]
    seed = sample_seed(Path(__file__).parent)
    return set(soon if PLANTS_ALL else random.Random(seed).sample(soon, (len(soon) + 9) // 10))


def _seeds(fault: PlantedFault) -> int:
    return SEEDS if fault.world == ONE_NODE else SEEDS // 4


def _is_found_soon(fault: PlantedFault) -> bool:
    missed = (1 - fault.shown / FIRST_SEEDS) ** _seeds(fault)
    return fault.seed is not None and missed <= MISSED_MAX and fault.finds != NOT_FINISHED


OF_THIS_COMMIT: Final = _of_this_commit()


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Field:
    """One copy for each of pytest's workers."""
    return Field(tmp_path_factory.mktemp("planted") / "tree")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.id) for fault in FOUND])
def test_it_is_found(field: Field, fault: PlantedFault) -> None:
    assert fault.seed is not None
    if not _is_found_soon(fault):
        pytest.skip("few worlds show it: `make test-long` searches them")
    if fault.id not in OF_THIS_COMMIT:
        pytest.skip("another commit is asked about it, and `make test-long`")
    within = _seeds(fault)
    found = field.find(fault.edits, fault.seed, 1, fault.world)
    if found.seed is None:
        found = field.find(fault.edits, 0, within, fault.world)
    assert found.seed is not None, (
        f"{within} seeds are clean with this fault: {fault.says} Search on with make simulate-faults FAULTS={fault.id} "
        "RECORD=1; where that finds nothing, the world has become too tame, or a check is missing"
    )
    assert found.kinds


def test_without_a_fault_a_recorded_seed_is_clean(field: Field) -> None:
    found = field.find((), next(fault.seed for fault in FOUND if fault.seed is not None), 1)
    assert found.seed is None, found.detail
