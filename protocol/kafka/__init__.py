"""The Kafka wire protocol: framing, and the messages of the data plane."""
