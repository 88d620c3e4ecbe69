#!/bin/sh
# Starts the SuperLink: the process that the sites connect to and that runs the server's part of the training. It runs
# until you stop it (Ctrl-C or SIGTERM). flwr/superlink.db stores the registered sites.
#
# DRFL_BIND   address to listen on (default: BIND in superlink.env)
# DRFL_BIN    folder of Flower's programs
set -eu
umask 077
cd "$(dirname "$0")"
here=$(pwd)
. ./superlink.env

@PROGRAMS@
@SECURITY@
host=${DRFL_BIND:-$BIND} port=$PORT
@FREE_PORT@
if [ "$taken" = 75 ]; then
    echo "port $port on $host is taken: the SuperLink of this deployment is running already, or another program uses" \
        "the port. Stop it first" >&2
    exit 1
fi
exec flower-superlink --host "$host" --port "$port" --database "$here/flwr/superlink.db" "$@"
