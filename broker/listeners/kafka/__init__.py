"""The Kafka protocol over TCP: framing, order, back-pressure, and the APIs that have joined the registry."""
