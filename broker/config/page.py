"""Makes docs/configuration.md: `python -m semel.broker.config.page > docs/configuration.md`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from semel.broker.config.node_config import SETTINGS, TOPIC_DEFAULTS, TOPIC_SETTINGS
from semel.broker.config.sources import environment_name
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.runtime.setting import Setting

_HEAD: Final = """\
# Configuration

This page is made from the settings that the parts of a node declare; `semel serve --settings` prints what a node would
use.

Every setting has a name, Kafka's where Kafka has the setting. Its value is taken from, strongest first:

1. a flag: `semel serve --set log.retention.ms=86400000`; the commonest have flags of their own (`--data-dir`,
   `--kafka`, `--grpc`, `--log-format`);
2. the environment: `SEMEL_LOG_RETENTION_MS=86400000`, the name in capitals with underscores;
3. the TOML file that `--config FILE` or `SEMEL_CONFIG` names;
4. the default.

```toml
data.dir = "/var/lib/semel"
kafka.listen = "127.0.0.1:9192"

[log.retention]
ms = 86_400_000
```

An unknown name or a wrong value stops the start with exit code 2 and one line that says where it stands and what was
probably meant. Settings marked *dynamic* can be changed while the node runs (AlterConfigs of the node); such a change
is kept in the metadata and wins over all of the above.

## Exit codes of `semel serve`

| Code | Meaning |
|---|---|
| 0 | stopped by SIGTERM or SIGINT; everything is on the disk |
| 1 | something that should not happen; the log has the traceback |
| 2 | the command line or the configuration is wrong |
| 3 | the data directory is in use, belongs to another node or cluster, or can't be read |
| 4 | the metadata can't be used or went back (below); the node runs twice, lacks too many changes, has another secret |
| 5 | a port is in use, or a host is not this machine's |
| 6 | the disk failed while the node ran, and it stopped, or while it stopped; what was acknowledged is kept |
| 7 | the node was removed from the cluster (`semel node remove`) while it ran; started again, it joins as a new one |

A second SIGTERM or SIGINT ends the process at once with 128 plus the signal's number; the next start recovers. The same
signal again counts as a second one only from 0.3 seconds after the first, because some tools send each signal twice;
the other signal counts at once. While the node still starts, the first signal ends it at once: with 0 for SIGTERM, 130
for SIGINT.

## A lost data directory

Where metadata.url names a database, the metadata can outlive the node's logs. A node whose data directory is empty,
although the metadata says that it has partitions, does not start (exit code 3): empty logs in their place would give
offsets that readers are past to new records, and forget transactions and committed offsets. Mount or restore the
directory; or start the node under a new `node.id`, which leaves those partitions to the lost one; or, if the records
are really gone, start it once with `semel serve --accept-data-loss`, which makes the partitions again, empty. Not at
every start: that would take away the protection.

## Metadata that went back

A node remembers how far it has applied the metadata's changes (`metadata-position` in the data directory). If the
database then has fewer, or others in their place, a running node stops and no start continues (exit code 4): the
database was restored from an older copy, or a fail-over lost its last changes. Topics that were created meanwhile would
be unknown, and their records deleted. Bring the database back with all of its changes: the server that has them, or a
newer copy. If they are gone for good, start the node once with `semel serve --data-dir DATA_DIR
--accept-metadata-loss`. It then continues from what the database has. Directories of partitions that the database does
not know are not deleted but renamed to `TOPIC-N.ID-stray`; `semel log dump` reads what is in them, and you may delete
them. Topics that were deleted meanwhile are there again, empty. Leader epochs and producer ids continue far behind all
that the lost changes can have given. With several nodes, [start each of them so](cluster.md#postgresql-is-away): the
replicas that have most lead then. With `semel serve --nodes`, add the option to the same command: it is for all nodes.

To lose nothing in a fail-over, let PostgreSQL replicate synchronously (`synchronous_standby_names`, with
`synchronous_commit = on`).

## A lost partition

A partition whose directory is gone, or can't be opened, is offline, and the node serves the others; `semel doctor` says
why, and whether the node keeps retrying. One whose directory had been made and is gone is never made again by
itself: its offsets would begin again. Stop the node and bring the directory back; or, if its records are gone for good,
start the node once with `semel serve --data-dir DATA_DIR --accept-loss-of orders:0` (once for each such partition).
Then the partition continues behind the last offset that is known of it, with what the journal still had of it. Move a
damaged directory away first. The directory has a list of the partitions that were made in it (`known-partitions`), and
keeps what the journal has of those that are offline (`kept/`): both belong to a backup.
"""

_TOPICS: Final = """\
## Topics

A topic can have its own value for each of these, given when it is created or changed later; else the node's setting
counts, also when that changes.

| Setting | The node's setting | Allowed |
|---|---|---|
"""


def configuration_page() -> str:
    """Return the whole page."""
    return _HEAD + "".join(_sections()) + "\n" + _TOPICS + "".join(_topic_rows())


def _sections() -> Iterator[str]:
    for section, settings in groupby(SETTINGS.values(), key=lambda setting: setting.section):
        yield f"\n## {section}\n"
        for setting in settings:
            yield _entry(setting)


def _entry(setting: Setting) -> str:
    default = setting.format(setting.default)
    facts = [
        setting.type.value,
        f"default `{default}`" if default else "empty by default",
        _allowed(setting),
        "*dynamic*" if setting.dynamic else "",
        f"topics: `{setting.topic_name}`" if setting.topic_name else "",
        "" if setting.only_dynamic else f"`{environment_name(setting.name)}`",
    ]
    return f"\n### `{setting.name}`\n\n{setting.documentation}\n\n{' · '.join(fact for fact in facts if fact)}\n"


def _topic_rows() -> Iterator[str]:
    for name in sorted(TOPIC_SETTINGS):
        default = f"`{TOPIC_DEFAULTS[name]}`" if name in TOPIC_DEFAULTS else "none"
        yield f"| `{name}` | {default} | {_allowed(TOPIC_SETTINGS[name])} |\n"


def _allowed(setting: Setting) -> str:
    text = setting.range_text().replace(f" to {INT32_MAX}", " or more").replace(f" to {INT64_MAX}", " or more")
    return "" if text == "text" else text


if __name__ == "__main__":
    print(configuration_page(), end="")
