"""The client library: Producer, Consumer, Admin and transactions."""
