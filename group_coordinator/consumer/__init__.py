"""The consumer protocol of groups (KIP-848): the coordinator assigns, and members reconcile in heartbeats."""
