#!/bin/sh
# Starts the SuperLink: the process that the sites connect to, and that runs the server's part of a training. It runs
# until it is stopped (Ctrl-C, or SIGTERM). Which sites are registered is remembered in flwr/superlink.db.
#
# DRFL_BIND   address to listen on (default: that of superlink.env)
# DRFL_BIN    folder of the programs
set -eu
umask 077
cd "$(dirname "$0")"
here=$(pwd)
. ./superlink.env

@PROGRAMS@
@SECURITY@
exec flower-superlink --host "${DRFL_BIND:-$BIND}" --port "$PORT" --database "$here/flwr/superlink.db" "$@"
