"""What the cluster's nodes decide about its partitions: pure functions from an image of the metadata to changes of it.

Who decides reads the newest image, and writes what it decided by compare-and-set; a conflict is decided again. So there
is no IO, no clock and no randomness here.
"""
