"""Every kind of finding of `semel doctor`: the one table that the rules, the command and its page are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from semel.protocol.acls import Acl
from semel.protocol.api.diagnostics import NO_TIME, NodeSnapshot, Section, Severity
from semel.protocol.ids import NO_LEADER, TopicPartition
from semel.protocol.wording import command


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding. `why` says why it matters, `fix` in words what is to be done about it."""

    name: str
    section: Section
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found.

    subject:  what it is about: a transactional id, a group, a partition, a setting
    what:     the facts, in a sentence
    since_ms: since when, in milliseconds since 1970; -1 where that is not known
    happens:  what will happen on its own, and when; empty where there is nothing to say
    commands: the commands that fix it, or the first step of it
    node_id:  the node that it is about, or whose partition, group or transaction; -1 where it is about the cluster
    """

    kind: FindingKind
    severity: Severity
    subject: str
    what: str
    since_ms: int = NO_TIME
    happens: str = ""
    commands: tuple[str, ...] = ()
    node_id: int = -1


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts of all nodes.

    unreachable: of those that did not answer, why
    addresses:   of several nodes, for gRPC
    acls:        all there are; None where nobody asks what clients may do
    """

    nodes: tuple[NodeSnapshot, ...]
    unreachable: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)
    acls: tuple[Acl, ...] | None = None

    @property
    def newest(self) -> NodeSnapshot | None:
        """The node that knows the most of the metadata."""
        return max(self.nodes, key=lambda node: node.metadata_sequence, default=None)

    def out_of_touch(self, metadata_ms: int) -> tuple[NodeSnapshot, ...]:
        """Return the nodes that have not reached the metadata's database for longer than `metadata_ms`."""
        return tuple(node for node in self.nodes if node.metadata_away_ms > metadata_ms)

    def is_metadata_frozen(self, metadata_ms: int) -> bool:
        """Whether none of the nodes that answer has reached the database: what they know of the cluster is old."""
        return bool(self.nodes) and len(self.out_of_touch(metadata_ms)) == len(self.nodes)

    def led_elsewhere(self, partition: TopicPartition, node_id: int) -> int | None:
        """Return which other node leads a partition that is not whole, None where none does."""
        told = () if self.newest is None else self.newest.replication
        leader = next((one.leader for one in told if one.partition == partition), NO_LEADER)
        return None if leader in (NO_LEADER, node_id) else leader

    def health_command(self, node_id: int) -> str:
        """Return the command that asks this one node, by its address where that is known."""
        address = self.addresses.get(node_id)
        return command("health") if address is None else command("health", "--bootstrap", address)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `Admin.diagnose` returns: the facts, and the findings, the worst first in each section."""

    cluster: Cluster
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is worse than an INFO."""
        return all(finding.severity is Severity.INFO for finding in self.findings)


_S = Section

_TABLE: Final = (
    FindingKind(
        "metadata-away", _S.COORDINATORS,
        "What the nodes say of leaders and replicas is how it was when they last reached the database: nobody elects "
        "leaders, and nothing about topics, nodes and replicas can be changed.",
        "Start the metadata's database (metadata.url), or restore the nodes' way to it: the network, its address, its "
        "password. The nodes continue on their own then.",
    ),
    FindingKind(
        "node-unreachable", _S.COORDINATORS,
        "What this node leads and coordinates is unavailable, and its facts are missing here.",
        "Start it, or see in its own log why it does not answer. If it is gone for good, start one with its number, or "
        "move what it has to the others and remove it (`semel node drain`, `semel node remove`).",
    ),
    FindingKind(
        "node-fenced", _S.COORDINATORS,
        "The cluster takes this node for dead, though it answers: it leads nothing, and is in no in-sync set.",
        "See in its own log why its heartbeats do not reach the metadata's database (metadata.url): the network, the "
        "database, or a machine that is too busy for broker.session.timeout.ms.",
    ),
    FindingKind(
        "controller-missing", _S.COORDINATORS,
        "Nobody elects leaders, so what a node led that dies stays without one.",
        "Check the metadata's database (metadata.url): a node takes the lease as soon as it can write there.",
    ),
    FindingKind(
        "coordinator-unreadable", _S.COORDINATORS,
        "Transactions and groups that live in this partition are refused until it can be read.",
        "Check the data directory, stop the node, and restore the partition's directory from a backup. Without one, "
        "move the directory away, if it still exists, and accept the loss at the next start: what the partition "
        "coordinates is forgotten, and its open transactions then hang (the doctor finds them).",
    ),
    FindingKind(
        "coordinator-loading", _S.COORDINATORS,
        "Clients retry while the partition is read into memory.",
        "Wait: it is read at the speed of the disk.",
    ),
    FindingKind(
        "lso-held", _S.TRANSACTIONS,
        "read_committed readers see nothing behind the first record of an open transaction (L1).",
        "Nothing, while it is as young as transactions of this application are meant to be.",
    ),
    FindingKind(
        "slow-transaction", _S.TRANSACTIONS,
        "All read_committed readers of its partitions wait for it, whatever they read.",
        "Find out what its producer does; abort the transaction if nobody else will. Its producer is fenced then.",
    ),
    FindingKind(
        "prepared-transaction", _S.TRANSACTIONS,
        "It never times out (T9), and readers wait until its outside coordinator has decided.",
        "Have the outside coordinator (a database, a job) end it. Abort it only where that one has, or is gone.",
    ),
    FindingKind(
        "markers-pending", _S.TRANSACTIONS,
        "The decision stands (T3), but partitions without its marker still hold their readers back, and its producer "
        "can't begin the next transaction.",
        "See that these partitions have a leader and enough replicas in sync. Where an attempt failed, the finding "
        "says why. The node keeps retrying, and skips a deleted topic.",
    ),
    FindingKind(
        "hanging-transaction", _S.TRANSACTIONS,
        "No coordinator knows it, so nobody will ever end it: readers wait for ever, and compaction too.",
        "Finish it on the partition: by an abort marker, because nobody has decided otherwise.",
    ),
    FindingKind(
        "marker-missing", _S.TRANSACTIONS,
        "Its decision stands (T3), but this partition has lost the marker, as a torn log does: readers wait here for "
        "ever, and see the rest of the transaction elsewhere.",
        "Write the marker of its decision. Never abort it by hand: that would tear a committed transaction apart.",
    ),
    FindingKind(
        "forged-marker", _S.TRANSACTIONS,
        "A client wrote it, through a node that still took markers from clients. If a transaction was open there, it "
        "was ended in that partition alone, maybe otherwise than it was decided. Or the transactions' topic was lost "
        "since, as by --accept-metadata-loss, and made again: then its epochs began again, and nothing is wrong.",
        "Nothing to keep the producer going: the next marker of its coordinator overrules this one. See how the "
        "transaction was decided, and compare the partition that is named; what is torn has to be written again.",
    ),
    FindingKind(
        "unknown-holder", _S.TRANSACTIONS,
        "No coordinator that can be asked knows who holds the last stable offset; one that can't be asked may.",
        "Fix the coordinator first: what is found about coordinators has the commands. Then run the doctor again. It "
        "says who holds the offset, or, where the loss of the coordinator's partition was accepted, calls it a hanging "
        "transaction and has the command that aborts it. An abort before that could tear a transaction apart.",
    ),
    FindingKind(
        "oversized-transaction", _S.TRANSACTIONS,
        "Readers get all of it at once when it ends, and hold back, or skip, that much until then.",
        "Commit more often. Abort it where it is a mistake.",
    ),
    FindingKind(
        "group-lagging", _S.GROUPS,
        "What comes in is processed late, and what retention deletes first, never.",
        "Check that its members are running and commit; add members, as many as there are partitions.",
    ),
    FindingKind(
        "group-rebalancing", _S.GROUPS,
        "While a group rebalances it reads less, and what was not committed is read again.",
        "Look for members that come and go: longer session timeouts, static members (group_instance_id), and less work "
        "between two polls keep a group calm.",
    ),
    FindingKind(
        "group-expiring", _S.GROUPS,
        "When its offsets are forgotten, its consumers begin at auto.offset.reset: records are read again, or skipped.",
        "Start a consumer of it before that, or keep offsets for longer. Delete the group where nobody needs it.",
    ),
    FindingKind(
        "group-without-members", _S.GROUPS,
        "Nobody reads for this group, and its records wait.",
        "Start its consumers. Delete the group where nobody needs it.",
    ),
    FindingKind(
        "partition-offline", _S.PARTITIONS,
        "It accepts no writes and serves no reads.",
        "See the reason, fix the disk, and start the node again: it recovers what was acknowledged.",
    ),
    FindingKind(
        "partition-not-made", _S.PARTITIONS,
        "Its files could not be made, so it accepts no writes and serves no reads. Nothing was ever in it.",
        "Fix what the reason says (make room, or check the disk); the node keeps retrying.",
    ),
    FindingKind(
        "partition-unreadable", _S.PARTITIONS,
        "The disk refused to open it, so it accepts no writes and serves no reads. What was acknowledged "
        "is kept, also what only the journal had.",
        "Fix what the reason says (make room, or check the disk); the node keeps retrying.",
    ),
    FindingKind(
        "partition-damaged", _S.PARTITIONS,
        "What is in its directory can't be made sense of, so it accepts no writes and serves no reads. "
        "The node's other partitions are served.",
        "Do what the reason says, or stop the node and restore the partition's directory from a backup. To continue "
        "without its records, move the directory away, and accept the loss at the next start.",
    ),
    FindingKind(
        "partition-vanished", _S.PARTITIONS,
        "Its directory had been made here, and is gone. Created again, empty, it would give old offsets to new records "
        "(D3).",
        "Where another node leads the partition, restart this one: it copies it again. Never put an old directory back "
        "there. Without other copies, stop the node and bring the directory back. If its records are gone for good, "
        "accept the loss at the next start: the partition continues behind its last known offset.",
    ),
    FindingKind(
        "partition-leaderless", _S.PARTITIONS,
        "No replica that has all committed records is alive, so nobody may write or read: records would be lost.",
        "Start one of the nodes that are named, or let it read its disk again: the partition is led again at once, and "
        "nothing is lost. If all of them are gone for good, elect one of the other replicas: `semel partition elect "
        "--unclean`, or ElectLeaders with the type UNCLEAN of any Kafka admin client. Committed records that it lacks "
        "are then lost, and transactions may be torn. After a start with --accept-metadata-loss the partition waits "
        "for its replicas to tell what they have: start all nodes first.",
    ),
    FindingKind(
        "partition-under-min-isr", _S.PARTITIONS,
        "Nothing is committed there: acks=all and transactions are refused with NOT_ENOUGH_REPLICAS until enough "
        "replicas are in sync again. What was committed is safe.",
        "Start the nodes that are missing. A lower min.insync.replicas admits writes at once, with fewer copies.",
    ),
    FindingKind(
        "replicas-behind", _S.PARTITIONS,
        "These partitions have fewer copies than they are meant to have, so they survive the loss of fewer nodes.",
        "Start the node. If it runs, its replicas catch up on their own; where they do not, its own log says why, or "
        "its disk or network is too slow.",
    ),
    FindingKind(
        "replication-factor-one", _S.PARTITIONS,
        "There is one copy: while its node is away nobody reads or writes it, and its records are lost with its disk.",
        "Give such topics more replicas (`semel partition move TOPIC --to 1,2,3`), and new ones from the start "
        "(default.replication.factor).",
    ),
    FindingKind(
        "internal-topic-replicas", _S.PARTITIONS,
        "It was created while fewer nodes were alive. Transactions, or groups and their offsets, stop while one of the "
        "nodes that have it is away, though others could have copies.",
        "Start the other nodes, and have none of them cordoned: the controller gives it the replicas that its settings "
        "ask for as soon as there are nodes enough.",
    ),
    FindingKind(
        "throttle-left", _S.PARTITIONS,
        "A replica that was away catches up no faster than the throttle allows: for longer, fewer copies are complete.",
        "Remove the throttles, unless they are meant to stay (`semel partition moves --remove-throttle`).",
    ),
    FindingKind(
        "partition-skewed", _S.PARTITIONS,
        "One partition has most of the topic's records, so one consumer does most of the work.",
        "Choose keys that spread more evenly.",
    ),
    FindingKind(
        "leaders-skewed", _S.PARTITIONS,
        "One node leads most partitions, and serves most of their clients.",
        "Elect the preferred leaders once all nodes run. Where that is not enough, have replicas and leaders spread "
        "evenly: look at what would be moved, then balance without --dry-run.",
    ),
    FindingKind(
        "disk-full", _S.DISK,
        "Producers are refused, so that the node keeps a reserve for its own work. In a cluster, other nodes lead what "
        "they have all records of, where they have room. Producers are served again once a tenth more than the reserve "
        "is free.",
        "Make room on the disk, keep less of the largest topic, or delete what nobody reads. To keep less deletes a "
        "topic's oldest records, on all nodes, a whole segment at a time.",
    ),
    FindingKind(
        "disk-filling", _S.DISK,
        "Below the reserve, producers are refused.",
        "Make room on the disk, or keep less of the largest topic: that deletes its oldest records, on all nodes.",
    ),
    FindingKind(
        "writes-failing", _S.DISK,
        "Appends are refused with this error.",
        "Fix what the error says; the node continues as soon as a write succeeds.",
    ),
    FindingKind(
        "maintenance-failing", _S.DISK,
        "What the node does between requests (flush logs, cut the journal, delete and compact old records) failed.",
        "Fix what the error says; the node tries again when it is next due, most of it within a minute.",
    ),
    FindingKind(
        "remote-storage-failing", _S.DISK,
        "Until it works, closed segments stay on the disk, which fills, and what is in the remote storage alone can't "
        "be read; a leader that can't look up what is there serves nobody.",
        "Fix what the error says: the bucket, its credentials, the network. The node tries again until it works. Where "
        "records are missing there, restore the bucket and the metadata's database from backups, or delete what is "
        "before the records that are left (`semel topic delete-records`).",
    ),
    FindingKind(
        "fsync-slow", _S.DISK,
        "Every acknowledgement with acks=all waits for such a sync (D1).",
        "Move the data directory to a faster disk, or take other work off this one.",
    ),
    FindingKind(
        "journal-large", _S.DISK,
        "Past its bound, producers are refused; a recovery has to read all of it.",
        "The disk does not keep up with flushing the logs: a faster one, or fewer writers.",
    ),
    FindingKind(
        "records-damaged", _S.DISK,
        "Bytes of a log changed after they had been synced (bits rotted, a file was cut or removed): readers do not "
        "get these records from this node. What had to be cut is beside the log, in files named .cut.",
        "Check the disk. A replica gets the records from its leader, and this finding is gone when it is in sync. "
        "Where no other node has them: stop the node and restore the partition's directory from a backup, or continue "
        "without the records; then remove last-recovery.json from the data directory, with the node stopped.",
    ),
    FindingKind(
        "unclean-start", _S.DISK,
        "The node had not stopped cleanly before it (killed, power cut); recovery has put back what the crash took.",
        "Nothing is left to do. Stop nodes with SIGTERM, and check the logs offline if you suspect the disk.",
    ),
    FindingKind(
        "anonymous-access", _S.SETTINGS,
        "Other machines may read, write and delete everything, and change settings (S6). Encryption alone keeps nobody "
        "out: passwords and certificates say who asks.",
        "See that the network keeps strangers out (a firewall, a network of the containers' own), listen on 127.0.0.1, "
        "or ask clients for passwords (tls+sasl:// before the address) or certificates (tls:// before the address, "
        "ssl.client.auth = required).",
    ),
    FindingKind(
        "listener-missing", _S.SETTINGS,
        "Clients are told the addresses of the listeners that have the name of the one they came by. For those of "
        "this name, what the node leads has no leader (LISTENER_NOT_FOUND), and nothing of it can be written or read.",
        "Give the node a listener of the same name (kafka.listeners, grpc.listeners), and start it again.",
    ),
    FindingKind(
        "durability-os", _S.SETTINGS,
        "With one replica, an acknowledgement then survives a killed process but no power cut: acknowledged and "
        "committed records may be lost.",
        "Have the node sync its journal before it answers.",
    ),
    FindingKind(
        "min-insync-impossible", _S.SETTINGS,
        "As many count as there are (as with Kafka), so an acknowledged record has fewer copies than the setting says.",
        "Add replicas, or lower min.insync.replicas to their number.",
    ),
    FindingKind(
        "min-insync-no-room", _S.SETTINGS,
        "All replicas have to be in sync, so the loss, or a planned restart, of one node stops producers with acks=all "
        "and transactions.",
        "Have one replica more than min.insync.replicas: 3 and 2. A lower min.insync.replicas makes room too, and what "
        "is acknowledged then has fewer copies.",
    ),
    FindingKind(
        "settings-differ", _S.SETTINGS,
        "What is promised then depends on which node leads: it changes with each election.",
        "Give all nodes the same value, and restart those that had another, one after the other.",
    ),
    FindingKind(
        "delegation-secrets-differ", _S.SETTINGS,
        "A delegation token that one node made is a wrong password to the others, so programs are let in by some nodes "
        "and refused by others.",
        "Copy the file that delegation.token.secret.file names from one node to all others, and restart those. Tokens "
        "that were made with another secret are then good no more.",
    ),
    FindingKind(
        "token-without-user", _S.SETTINGS,
        "The owner of a delegation token was removed from the nodes' file of users. The token opens nothing. Nor does "
        "it open anything for a later user of the name, whom `semel user add` writes; it does where somebody writes "
        "his line by hand, without the time at which he was added.",
        "Remove the tokens. `semel user remove` does so, also where the cluster has no such user. Where only some "
        "nodes lack the user: give all nodes the same file.",
    ),
    FindingKind(
        "versions-differ", _S.SETTINGS,
        "An older node does not start again, or stops, where a newer one writes something that it does not know.",
        "Finish the upgrade: install the same version on all nodes, and restart them one after the other.",
    ),
    FindingKind(
        "clocks-apart", _S.SETTINGS,
        "Times of records, retention, and the timeouts of transactions go by the leader's clock: they jump when "
        "another node leads. Who is alive and who leads does not depend on it.",
        "Have all machines keep their clocks by NTP.",
    ),
    FindingKind(
        "retention-short", _S.SETTINGS,
        "A transaction may stay open for longer than records are kept: what it wrote first can be deleted before "
        "anybody could read it.",
        "Keep records for longer than transactions may take.",
    ),
    FindingKind(
        "offsets-retention-short", _S.SETTINGS,
        "A group that has no member for this long starts over: its input is transformed again, or skipped.",
        "Keep offsets for longer than your longest outage; Kafka's default is a week.",
    ),
    FindingKind(
        "transaction-timeout-long", _S.SETTINGS,
        "A producer that died keeps readers waiting for as long as its timeout, up to this.",
        "Allow what the slowest transaction needs, and no more.",
    ),
    FindingKind(
        "transactional-id-expiration-short", _S.SETTINGS,
        "A producer that is idle for this long is forgotten, and its next transaction is refused.",
        "Remember ids for longer than producers are idle; Kafka's default is a week.",
    ),
    FindingKind(
        "producer-id-expiration-short", _S.SETTINGS,
        "A batch that is sent again after this long is not recognised as a repetition: records are doubled (P1, P8).",
        "Remember producers for longer than they retry; a day is the default.",
    ),
    FindingKind(
        "commit-history-short", _S.SETTINGS,
        'After this long, "did it commit?" is answered with no: a job that asks late does its work twice (T13).',
        "Keep commits for longer than a job can be down; a month is the default.",
    ),
    FindingKind(
        "two-phase-enabled", _S.SETTINGS,
        "Transactions that are decided outside never time out: one that is left behind holds its readers for ever.",
        "Nothing, where such a coordinator is used; else turn it off.",
    ),
    FindingKind(
        "no-disk-reserve", _S.SETTINGS,
        "On a full disk the node could not even write the markers and records that make room.",
        "Keep a reserve.",
    ),
    FindingKind(
        "acl-for-everybody", _S.PERMISSIONS,
        "Who can connect, in whatever way the node lets clients in, may do it: no password or certificate is needed to "
        "be one of everybody.",
        "Allow it to the users that need it, and then remove the ACL for everybody.",
    ),
    FindingKind(
        "super-user-anonymous", _S.PERMISSIONS,
        "Anybody without a password and a certificate may do everything, to ACLs and users too.",
        "Name a user in super.users in place of User:ANONYMOUS, and restart the nodes one after the other.",
    ),
    FindingKind(
        "open-without-acl", _S.PERMISSIONS,
        "What no ACL is about is open to everybody who can connect: a topic whose name has a typing error, for "
        "instance, and one that was just created.",
        "Write ACLs for what is used, and then set allow.everyone.if.no.acl.found to false on all nodes.",
    ),
    FindingKind(
        "nobody-administers", _S.PERMISSIONS,
        "No ACL can be added, and nothing of the cluster changed, by anybody.",
        "Name a user in super.users, and restart the nodes one after the other.",
    ),
    FindingKind(
        "acl-ineffective", _S.PERMISSIONS,
        "It does not do what it says. Where it denies something, somebody may rely on that.",
        "Write one that says what is meant, or take the user out of super.users; and remove this one.",
    ),
    FindingKind(
        "acl-redundant", _S.PERMISSIONS,
        "The ACLs that there are decide the same without it. Who removes it later, to take something away, takes "
        "nothing away.",
        "Remove it, if the wider one is meant.",
    ),
)  # fmt: skip

KINDS: Final[Mapping[str, FindingKind]] = MappingProxyType({kind.name: kind for kind in _TABLE})
"""Every kind of finding by its name, in the order of the documentation."""
