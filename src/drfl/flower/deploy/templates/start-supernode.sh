#!/bin/sh
# Starts the SuperNode of the site @NAME@: the process that receives the SuperLink's requests and answers them using the
# data that site.toml names. The data stay here. It runs until you stop it (Ctrl-C or SIGTERM), and reconnects if the
# SuperLink was unreachable.
#
# DRFL_SUPERLINK   the SuperLink's address, host:port (default: ADDRESS in superlink.env)
# DRFL_PORT        port on 127.0.0.1 for the SuperNode's child processes (default: PORT in superlink.env)
# DRFL_BIN         folder of Flower's programs
# DRFL_PREFORK     0 = load PyTorch again for every request, instead of keeping a process with PyTorch loaded
set -eu
umask 077
cd "$(dirname "$0")"
here=$(pwd)
. ./superlink.env

@PROGRAMS@
@SECURITY@
host=127.0.0.1 port=${DRFL_PORT:-$PORT}
@FREE_PORT@
if [ "$taken" = 75 ]; then
    echo "port $port on 127.0.0.1 is taken: the SuperNode of @NAME@ is running already, or another program uses the" \
        "port. Stop it, or set another port with DRFL_PORT" >&2
    exit 1
fi

if [ "${DRFL_PREFORK:-1}" != 0 ]; then
    "$python" -P -m drfl.flower.fork_server "$here/flwr/prefork" &
    PATH=$here/flwr/prefork:$PATH
fi
flower-supernode --superlink "${DRFL_SUPERLINK:-$ADDRESS}" --port "$port" \
    --node-config "site=\"$here/site.toml\"" "$@" &
node=$!
stopped=
trap 'stopped=yes; kill "$node"' INT TERM
status=0
wait "$node" || status=$?
if [ -n "$stopped" ]; then
    wait "$node" || true
else
    # Flower ends a SuperNode whose key is revoked without saying so, with exit code 0.
    cat >&2 <<END
the SuperNode of @NAME@ ended with exit code $status. Possible causes, by what Flower printed:
- code 2004, soon after a crash: the SuperLink counts the old SuperNode as alive for about a minute. Start it again then
- code 2004, another SuperNode of this site is running: stop one of them
- code 2004, otherwise: the site's key was revoked or is not registered. Ask the server's operator
- CERTIFICATE_VERIFY_FAILED: the SuperLink's certificate does not fit ca.crt, or has expired. 'drfl deploy check .' shows which
- no error: the site's key was revoked. Ask the server's operator
END
fi
exit "$status"
