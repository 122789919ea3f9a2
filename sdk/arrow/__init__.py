"""Topics as Arrow columns: ranges of offsets, read without a Python object for a record."""
