"""Replacement of Flower's program ``flwr-clientapp`` at a site where :mod:`drfl.flower.fork_server` runs.

It sends its arguments to that process, which takes a few milliseconds. If that process has ended, it runs Flower's own
program. It is run as a file and imports only the standard library.
"""

import os
import socket
import sys

PROGRAM = "flwr-clientapp"
SOCKET_NAME = "door"
"""Name of the socket in its folder."""
DONE = b"done"


def hand_over(folder: str, arguments: list[str]) -> bool:
    """Send the arguments to the process behind the socket in a folder, and return whether it accepted them."""
    previous_folder = os.getcwd()
    try:
        os.chdir(folder)  # the path of a socket is limited to about a hundred characters
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(SOCKET_NAME)
            connection.sendall(b"".join(os.fsencode(part) + b"\0" for part in arguments))
            # The other end reads until the end of the stream, so close this direction.
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(len(DONE)) == DONE
    # The process has ended: the caller runs Flower's own program instead.
    except OSError:
        return False
    finally:
        os.chdir(previous_folder)


def main() -> None:
    """Hand over the arguments, or run Flower's own program."""
    folder, *arguments = sys.argv[1:]
    if hand_over(folder, arguments):
        return
    # Remove this folder from PATH, because it contains the program that called this one.
    other_folders = [path for path in os.get_exec_path() if os.path.realpath(path) != os.path.realpath(folder)]
    os.environ["PATH"] = os.pathsep.join(other_folders)
    os.execvp(PROGRAM, [PROGRAM, *arguments])


if __name__ == "__main__":
    main()
