"""What an operator may set about the remote storage."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.runtime.setting import ConfigError, PartConfig, setting


@dataclass(frozen=True)
class RemoteStorageConfig(PartConfig):
    """Where closed segments of topics with remote.storage.enable go, and how they are read from there."""

    remote_storage_url: str = setting(
        "",
        "Where the segments of topics with remote.storage.enable are copied to: s3://BUCKET/PREFIX, "
        "gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX, or file:///DIRECTORY. Options follow a question mark: "
        "s3://BUCKET?region=eu-central-1&endpoint=https://HOST. Credentials come from the store's own environment "
        "variables (AWS_ACCESS_KEY_ID and so on) or from the machine's role, never from here. All nodes of a cluster "
        "have the same. Empty: no topic can have it.",
    )
    remote_storage_timeout_ms: int = setting(
        30_000,
        "How long one request to the remote storage may take, with its retries. An upload may take as long again for "
        "each 32 MiB.",
        unit="ms",
        minimum=1_000,
        maximum=INT32_MAX,
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        "How often a node looks for segments to copy to the remote storage, and for those to delete there.",
        unit="ms",
        minimum=100,
        maximum=INT32_MAX,
    )
    log_diskless_enable: bool = setting(
        False,
        "Whether topics are diskless that do not say otherwise when they are created (diskless.enable), those of the "
        "coordinators, too: then no node has anything on its disk that another one lacks. Needs remote.storage.url. "
        "Topics that are there already stay as they are.",
    )
    diskless_append_commit_interval_ms: int = setting(
        100,
        "How long records of diskless topics are gathered before they are written to the remote storage as one "
        "object. Fewer objects cost less; each record waits longer.",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    diskless_append_buffer_max_bytes: int = setting(
        8 << 20,
        "With so much gathered, an object is written at once.",
        unit="bytes",
        minimum=64 << 10,
        maximum=64 << 20,
    )
    diskless_inline_max_bytes: int = setting(
        16 << 10,
        "Up to so much of a partition is committed at once in a row of the metadata's database, and needs no object. "
        "0: everything goes to objects.",
        unit="bytes",
        minimum=0,
        maximum=1 << 20,
    )
    diskless_inline_bytes_per_second: int = setting(
        1 << 20,
        "How much a node writes to the metadata's database in that way; what is more goes to objects.",
        unit="bytes",
        minimum=0,
        long=True,
    )
    remote_log_reader_cache_bytes: int = setting(
        128 << 20,
        "How much a node holds in memory of what it has read from the remote storage.",
        unit="bytes",
        minimum=16 << 20,
        long=True,
    )

    remote_log_manager_copy_max_bytes_per_second: int = setting(
        INT64_MAX,
        "How much a node copies to the remote storage, at most. It may go beyond that by one segment, and then waits. "
        "What is appended to diskless topics is copied as well, once there is enough for a segment.",
        unit="bytes",
        minimum=1,
        long=True,
        dynamic=True,
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        INT64_MAX,
        "How much a node reads from the remote storage for consumers, at most. Those who want more get nothing until "
        "then, as at the end of a partition.",
        unit="bytes",
        minimum=1,
        long=True,
        dynamic=True,
    )
    remote_storage_put_requests_per_second: int = setting(
        INT64_MAX,
        "How many requests a node sends to write objects, at most: each costs. Copies wait; records of diskless topics "
        "are gathered for longer, and producers are refused, to retry, where too many wait.",
        minimum=1,
        long=True,
        dynamic=True,
    )
    remote_storage_get_requests_per_second: int = setting(
        INT64_MAX,
        "How many requests a node sends to read objects for consumers, at most: each costs.",
        minimum=1,
        long=True,
        dynamic=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_diskless_enable and not self.remote_storage_url:
            raise ConfigError(
                "log.diskless.enable=true needs remote.storage.url, for example s3://my-bucket/semel: else no topic "
                "that says nothing else can be served, nor those of the coordinators"
            )
