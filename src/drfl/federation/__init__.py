"""The interface between the server's algorithm and the clients."""
