"""A real deployment over Flower: write its folder, check it, run it. Flower itself is only called, never imported."""
