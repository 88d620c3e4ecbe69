"""Local servers that answer in place of the SuperLink."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager, suppress


@contextmanager
def serving(answer, certificates=None):
    """Yield the port of a server that answers every connection with the same bytes; certificates enable TLS."""
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "superlink.crt", certificates / "superlink.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):  # the listener is closed at the end
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    _answer(connection, context, answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _answer(connection, context, answer):
    connection.settimeout(5)
    if context is None:
        connection.recv(1000)
        connection.sendall(answer)
        return
    with context.wrap_socket(connection, server_side=True) as wrapped:
        wrapped.recv(1000)
        wrapped.sendall(answer)
