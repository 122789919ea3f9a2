"""What all clients stand on: connections, the cluster's metadata, the I/O thread, requests and answers."""
