"""The HTTP gateway: what programs reach a log through that speak HTTP and no Kafka protocol. A client like any other."""
