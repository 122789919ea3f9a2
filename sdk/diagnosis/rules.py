"""The doctor: all rules over the facts of all nodes. Pure, so that each rule can be tried with made-up facts."""

from __future__ import annotations

from semel.protocol.api.diagnostics import Section, Thresholds
from semel.sdk.diagnosis.acl_rules import acl_findings
from semel.sdk.diagnosis.cluster_rules import (
    agreement_findings,
    metadata_findings,
    node_findings,
    replication_findings,
)
from semel.sdk.diagnosis.findings import Cluster, Diagnosis, Finding
from semel.sdk.diagnosis.group_rules import group_findings
from semel.sdk.diagnosis.node_rules import disk_findings, partition_findings, setting_findings
from semel.sdk.diagnosis.transaction_rules import coordinator_findings, forged_findings, transaction_findings

_ORDER = {section: place for place, section in enumerate(Section)}


def diagnose(cluster: Cluster, thresholds: Thresholds | None = None) -> Diagnosis:
    """Return what is found, by section, the worst and the oldest first."""
    limits = thresholds or Thresholds()
    found = [
        *metadata_findings(cluster, limits),
        *coordinator_findings(cluster, limits),
        *node_findings(cluster, limits),
        *transaction_findings(cluster, limits),
        *forged_findings(cluster),
        *group_findings(cluster, limits),
        *partition_findings(cluster),
        *replication_findings(cluster),
        *disk_findings(cluster, limits),
        *setting_findings(cluster),
        *agreement_findings(cluster, limits),
        *acl_findings(cluster),
    ]
    found.sort(key=_place)
    return Diagnosis(cluster, tuple(found))


def _place(one: Finding) -> tuple[int, int, bool, bool, int, str]:
    is_first = one.kind.name == "metadata-away"  # the others may follow from it
    return _ORDER[one.kind.section], -one.severity.rank, not is_first, one.since_ms < 0, one.since_ms, one.subject


def unresolved_producers(cluster: Cluster) -> frozenset[int]:
    """Return the holders that their own nodes' coordinators do not know: the other nodes are to be asked for them."""
    known = {txn.producer_id for node in cluster.nodes for txn in node.transactions}
    return frozenset(one.producer_id for node in cluster.nodes for one in node.held if not one.is_known) - known
