"""Writing: tasks write, the driver decides, and an output takes effect with its offsets."""
