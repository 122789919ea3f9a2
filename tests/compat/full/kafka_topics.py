"""As much of `kafka-topics.sh` as librdkafka's tests call: makes, grows and deletes topics."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import Future

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

TIMEOUT_S = 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server", required=True)
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("create", "alter", "delete"):
        action.add_argument(f"--{name}", action="store_const", const=name, dest="action")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[])
    options = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": options.bootstrap_server})
    asked: dict[str, Future[None]]
    if options.action == "create":
        config = dict(pair.split("=", 1) for pair in options.config)
        topic = NewTopic(options.topic, options.partitions, options.replication_factor, config=config)
        asked = admin.create_topics([topic], operation_timeout=TIMEOUT_S)
    elif options.action == "alter":
        asked = admin.create_partitions([NewPartitions(options.topic, options.partitions)], operation_timeout=TIMEOUT_S)
    else:
        asked = admin.delete_topics([options.topic], operation_timeout=TIMEOUT_S)
    asked[options.topic].result(TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
