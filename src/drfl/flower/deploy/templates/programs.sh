# The programs: those of the folder below, or of DRFL_BIN if that is set; else whatever is on PATH. They start each
# other by name, so the folder has to be on PATH.
bin=@BIN@
bin=${DRFL_BIN:-$bin}
if [ -x "$bin/@PROGRAM@" ]; then
    PATH=$bin:$PATH
    export PATH
elif ! command -v @PROGRAM@ >/dev/null; then
    echo "@PROGRAM@ is neither in $bin nor on PATH: pip install 'drfl[flower]', or set DRFL_BIN to its folder" >&2
    exit 1
fi

# Flower sends no usage data, asks for no updates and installs nothing at run time; its files stay in this folder.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$here/flwr"
# No terminal's codes in the answers that are read here, whatever a notebook or continuous integration asks for.
unset FORCE_COLOR CLICOLOR_FORCE TTY_COMPATIBLE
# Seconds between two looks for work; Flower's 1 would be half a second of every request.
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.25
