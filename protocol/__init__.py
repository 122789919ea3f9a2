"""The vocabulary that every part shares, without IO: ids, errors, record batches, compression, messages."""
