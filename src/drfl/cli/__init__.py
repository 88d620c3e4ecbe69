"""The command: parse, build, run, print."""
