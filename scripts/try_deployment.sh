#!/usr/bin/env bash
# Set up and test a real deployment on this machine, from a fresh clone, and stop all processes at the end.
# Options are those of scripts/try_deployment.py: see its --help.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent "${VENV:-.venv}/.dev" VENV="${VENV:-.venv}"
export OMP_NUM_THREADS=1
exec "${VENV:-.venv}/bin/python" scripts/try_deployment.py "$@"
