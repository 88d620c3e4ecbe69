"""What takes the place of Flower's program ``flwr-clientapp`` at a site where :mod:`drfl.flower.fork_server` runs.

It tells that process what it was called with, which is done in a few milliseconds; where there is no such process any
more it becomes Flower's own program. It is run as a file and loads nothing but the standard library.
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
        os.chdir(folder)  # the path of a socket may have some hundred characters only
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(DOOR)
            way.sendall(b"".join(os.fsencode(part) + b"\0" for part in arguments))
            way.shutdown(socket.SHUT_WR)
            return way.recv(len(DONE)) == DONE
    except OSError:
        return False
    finally:
        os.chdir(back)


def main() -> None:
    """Hand over, or start Flower's program."""
    folder, *arguments = sys.argv[1:]
    if handed_over(folder, arguments):
        return
    elsewhere = [path for path in os.get_exec_path() if os.path.realpath(path) != os.path.realpath(folder)]
    os.environ["PATH"] = os.pathsep.join(elsewhere)
    os.execvp(PROGRAM, [PROGRAM, *arguments])


if __name__ == "__main__":
    main()
