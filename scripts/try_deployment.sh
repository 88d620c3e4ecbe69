#!/usr/bin/env bash
# A real deployment on this machine, from a fresh clone: sets up what it needs, tries everything, takes it all down.
# Options are those of scripts/try_deployment.py: see its --help.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent "${VENV:-.venv}/.dev" VENV="${VENV:-.venv}"
export OMP_NUM_THREADS=1
exec "${VENV:-.venv}/bin/python" scripts/try_deployment.py "$@"
