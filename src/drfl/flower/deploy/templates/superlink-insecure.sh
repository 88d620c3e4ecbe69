
# Nothing is encrypted and nobody is checked: for one machine, or a network that nobody else can reach.
set -- --insecure "$@"
