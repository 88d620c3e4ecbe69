
# No encryption and no authentication: use this on one machine only, or on an isolated network.
set -- --insecure "$@"
