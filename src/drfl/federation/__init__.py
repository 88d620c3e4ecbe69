"""The contract between the server's algorithm and the clients."""
