"""The HTTP gateway: programs that speak HTTP, and no Kafka protocol, reach a log by it. A client like any other."""
