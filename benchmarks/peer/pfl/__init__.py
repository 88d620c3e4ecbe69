"""pfl's adapter: ``__main__`` starts the workers, ``simulation`` is what each of them runs."""
