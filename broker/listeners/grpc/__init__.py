"""The gRPC listener: semel.v1, translated to and from the handlers."""
