"""A world in one process: nodes, clients, network, disks, database and clocks, from a seed (docs/simulation.md)."""
