"""`python -m simulation.hunting FIRST COUNT WORLD`: run seeds until one is not clean, and print that as JSON.

This is what runs in a copy of the checkout that has a fault planted in it (`planting.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time

from simulation.command_line import end_with
from simulation.runs import ONE_NODE, run


def main(first: int, count: int, world: str = ONE_NODE) -> int:
    end_with(os.getppid())
    begun = time.process_time()
    told: dict[str, object] = {"seed": None, "tried": count}
    for seed in range(first, first + count):
        verdict = run(seed, world=world)
        if not verdict.is_clean:
            told = {
                "seed": seed,
                "tried": seed - first + 1,
                "kinds": list(dict.fromkeys(anomaly.kind for anomaly in verdict.anomalies)),
                "detail": str(verdict.anomalies[0].detail)[:300],
            }
            break
    print(json.dumps({**told, "seconds": round(time.process_time() - begun, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
