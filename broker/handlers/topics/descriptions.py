"""What handlers tell about topics and nodes."""

from __future__ import annotations

from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.protocol.api.metadata import ClusterDescription, NodeDescription
from semel.protocol.api.topics import PartitionDescription, TopicDescription


def describe_topic(topic: TopicImage) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        tuple(
            PartitionDescription(number, state.leader, state.leader_epoch, state.replicas, state.isr)
            for number, state in enumerate(topic.partitions)
        ),
    )


def describe_cluster(image: MetadataImage, controller_id: int) -> ClusterDescription:
    return ClusterDescription(
        image.cluster_id,
        controller_id,
        tuple(
            NodeDescription(
                broker.node_id,
                broker.kafka_host,
                broker.kafka_port,
                broker.grpc_host,
                broker.grpc_port,
                broker.rack,
            )
            for broker in image.brokers.values()
        ),
    )
