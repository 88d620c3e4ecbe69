"""Replaces Flower's program ``flwr-clientapp`` at a site where :mod:`drfl.flower.fork_server` runs.

It sends its arguments to that process, which takes a few milliseconds; if that process has ended, it executes Flower's
own program. It is run as a file and loads nothing but the standard library.
"""

import os
import socket
import sys

PROGRAM = "flwr-clientapp"
DOOR = "door"
"""The socket's name in its folder."""
DONE = b"done"


def handed_over(folder: str, arguments: list[str]) -> bool:
    """Whether the process behind the socket in a folder has taken the arguments."""
    back = os.getcwd()
    try:
        os.chdir(folder)  # the path of a socket is limited to about a hundred characters
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(DOOR)
            way.sendall(b"".join(os.fsencode(part) + b"\0" for part in arguments))
            # Tells the other end that the arguments are complete: it reads until then.
            way.shutdown(socket.SHUT_WR)
            return way.recv(len(DONE)) == DONE
    # The process has ended: the caller runs Flower's own program instead.
    except OSError:
        return False
    finally:
        os.chdir(back)


def main() -> None:
    """Hand over, or start Flower's program."""
    folder, *arguments = sys.argv[1:]
    if handed_over(folder, arguments):
        return
    # Without this folder, where the program of that name is the one that called this.
    elsewhere = [path for path in os.get_exec_path() if os.path.realpath(path) != os.path.realpath(folder)]
    os.environ["PATH"] = os.pathsep.join(elsewhere)
    os.execvp(PROGRAM, [PROGRAM, *arguments])


if __name__ == "__main__":
    main()
