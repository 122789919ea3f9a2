"""What handlers tell about topics and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from semel.broker.metadata.changes import Endpoint
from semel.broker.metadata.image import BrokerImage, MetadataImage, TopicImage
from semel.protocol.api.metadata import ClusterDescription, NodeDescription
from semel.protocol.api.topics import PartitionDescription, TopicDescription


class Addresses(NamedTuple):
    """Where a client reaches a node by both protocols."""

    kafka: Endpoint
    grpc: Endpoint


def kafka_client_of(listener: str) -> Callable[[BrokerImage], Addresses | None]:
    """Return what tells where a client of the Kafka listeners of this name reaches a node; None where nowhere."""

    def found(broker: BrokerImage) -> Addresses | None:
        kafka = broker.kafka_at(listener)
        return None if kafka is None else Addresses(kafka, broker.grpc_beside(listener))

    return found


def grpc_client_of(listener: str) -> Callable[[BrokerImage], Addresses | None]:
    """Return the same for a client of the gRPC listeners of this name."""

    def found(broker: BrokerImage) -> Addresses | None:
        grpc = broker.grpc_at(listener)
        return None if grpc is None else Addresses(broker.kafka_beside(listener), grpc)

    return found


def describe_topic(topic: TopicImage) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        tuple(
            PartitionDescription(
                number, state.leader, state.leader_epoch, state.replicas, state.isr, state.is_switching
            )
            for number, state in enumerate(topic.partitions)
        ),
    )


def describe_cluster(
    image: MetadataImage, controller_id: int, addresses: Callable[[BrokerImage], Addresses | None]
) -> ClusterDescription:
    """`addresses`: return where a client reaches a node; None leaves it out."""
    return ClusterDescription(
        image.cluster_id,
        controller_id,
        tuple(
            NodeDescription(
                broker.node_id, *(found.kafka.host, found.kafka.port), *(found.grpc.host, found.grpc.port), broker.rack
            )
            for broker in image.brokers.values()
            if (found := addresses(broker)) is not None
        ),
    )
