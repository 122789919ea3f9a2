"""What is measured and traced, below any exporter."""
