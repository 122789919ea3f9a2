"""What every API about partitions needs: the partition, or who leads it."""
