"""`semel bench`: how fast a node, or a Kafka broker, takes and returns records."""
