"""What all of drfl stands on: random keys, errors, argument checks, and files."""
