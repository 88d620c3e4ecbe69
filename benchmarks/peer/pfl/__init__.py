"""pfl's adapter: ``__main__`` starts the workers, each of which runs ``simulation``."""
