"""One file per API of the Kafka protocol: reads the request, calls the handler that gRPC calls, builds the answer."""
