# Flower's programs come from DRFL_BIN if it is set, else from the folder below, else from PATH.
# They start each other by name, so their folder has to be on PATH.
bin=@BIN@
bin=${DRFL_BIN:-$bin}
if [ -x "$bin/@PROGRAM@" ]; then
    PATH=$bin:$PATH
    export PATH
elif ! command -v @PROGRAM@ >/dev/null; then
    echo "@PROGRAM@ is neither in $bin nor on PATH. Run: pip install 'drfl[flower]', or set DRFL_BIN to its folder" >&2
    exit 1
fi

# Flower sends no usage data, checks for no updates and installs nothing at run time. Its files stay in this folder.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$here/flwr"
# These variables, set by notebooks and CI, would put terminal codes into output that the scripts parse.
unset FORCE_COLOR CLICOLOR_FORCE TTY_COMPATIBLE
# Seconds between polls for work. Flower's default of 1 would add half a second to every request on average.
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.25
