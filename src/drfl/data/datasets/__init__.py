"""Named data sets: their catalogue, download and file formats."""
