"""What a node tells about itself through OpenTelemetry and Prometheus."""
