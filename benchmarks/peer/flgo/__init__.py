"""FLGo's adapter: ``core`` is the benchmark that FLGo asks for, ``__main__`` the run."""
