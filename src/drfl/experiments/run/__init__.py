"""One run and its folder."""
