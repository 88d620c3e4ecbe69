python=$(dirname "$(command -v @PROGRAM@)")/python3
[ -x "$python" ] || python=python3
# If the port is taken, Flower prints only a traceback, and a SuperNode hangs.
taken=0
"$python" -I -c '
import errno, socket, sys
host, port = sys.argv[1:]
with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((host, int(port)))
    except OSError as error:
        sys.exit(75 if error.errno == errno.EADDRINUSE else 0)
' "$host" "$port" || taken=$?
