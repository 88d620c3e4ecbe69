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
if [ "${DRFL_PREFORK:-1}" != 0 ]; then
    python=$(dirname "$(command -v flower-supernode)")/python3
    [ -x "$python" ] || python=python3
    "$python" -P -m drfl.flower.fork_server "$here/flwr/prefork" &
    PATH=$here/flwr/prefork:$PATH
fi
flower-supernode --superlink "${DRFL_SUPERLINK:-$ADDRESS}" --port "${DRFL_PORT:-$PORT}" \
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
    echo "the SuperNode of @NAME@ ended with exit code $status. If starting it gives Flower's code 2004, the SuperLink does" \
        "not accept this site's key, because it was revoked or is not registered: ask the server's operator" >&2
fi
exit "$status"
