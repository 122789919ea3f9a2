"""The listener of the other nodes: the frames of the Kafka listener, trust before the first, and APIs of its own."""
