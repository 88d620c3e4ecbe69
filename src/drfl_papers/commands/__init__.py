"""The commands `drfl reproduce` and `drfl energy`."""
