#!/bin/sh
# Starts the SuperNode of the site @NAME@: the process that waits for the SuperLink's requests and answers them from
# the data that site.toml names. The data stay here. It runs until it is stopped (Ctrl-C, or SIGTERM), and connects
# anew when the SuperLink was away.
#
# DRFL_SUPERLINK   the SuperLink's address, host:port (default: that of superlink.env)
# DRFL_PORT        port on 127.0.0.1 for its own child processes (default: that of superlink.env)
# DRFL_BIN         folder of the programs
# DRFL_PREFORK     0 = every request loads PyTorch anew, and no process with it loaded waits in between
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
exec flower-supernode --superlink "${DRFL_SUPERLINK:-$ADDRESS}" --port "${DRFL_PORT:-$PORT}" \
    --node-config "site=\"$here/site.toml\"" "$@"
