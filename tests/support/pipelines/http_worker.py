"""A worker that has nothing but HTTP and the standard library: it sums numbers, each exactly once, and may be killed.

    python -P http_worker.py GROUP SOURCE TARGET PARTITIONS URL...

It reads where the group stands, reads records from there, and sends their sum with the offsets in one request. It keeps
nothing: after a crash the next one does the same. A request without an answer is sent again, with its key, to any
gateway.
"""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
import uuid
from typing import Any
from urllib.error import HTTPError, URLError

RECORDS = 7
DONE = 200
MOVED = 409


def ask(urls: list[str], path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
    """Return status and answer; asks one gateway after the other until one answers for certain."""
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    while True:
        url = random.choice(urls)
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refused:
            if refused.code < 500:
                return refused.code, json.load(refused)
        except (URLError, OSError, ValueError):
            pass
        time.sleep(0.05)


def main() -> None:
    group, source, target, partitions, *urls = sys.argv[1:]
    cluster = f"/v3/clusters/{ask(urls, '/v3/clusters')[1]['data'][0]['cluster_id']}"
    for number in range(1_000_000):
        partition = (number + random.randrange(2)) % int(partitions)
        status, stands = ask(urls, f"{cluster}/consumer-groups/{group}/offsets")
        if status == MOVED:
            continue  # a transaction is about to move the group
        here = [one["offset"] for one in stands["data"] if one["partition_id"] == partition]
        begins = here[0] if here else None
        path = f"{cluster}/topics/{source}/partitions/{partition}/records"
        query = f"?offset={begins or 0}&max_records={RECORDS}&max_wait_ms=50&value_format=STRING"
        _, found = ask(urls, path + query)
        if not found["data"]:
            continue
        numbers = [int(record["value"]["data"]) for record in found["data"]]
        body = {
            "records": [
                {"topic_name": target, "value": {"type": "JSON", "data": {"sum": sum(numbers), "of": numbers}}}
            ],
            "consumer_group_id": group,
            "offsets": [
                {
                    "topic_name": source,
                    "partition_id": partition,
                    "expected_offset": begins,
                    "offset": found["next_offset"],
                }
            ],
        }
        status, answer = ask(urls, f"{cluster}/transactions", body, str(uuid.uuid4()))
        assert status in (DONE, MOVED), answer


if __name__ == "__main__":
    main()
