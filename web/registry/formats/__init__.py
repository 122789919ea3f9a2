"""The three languages that schemas are written in: parsed, in one canonical form, and compared."""
