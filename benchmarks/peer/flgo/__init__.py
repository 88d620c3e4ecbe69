"""FLGo's adapter: ``core`` is the benchmark that FLGo requires, ``__main__`` the run."""
