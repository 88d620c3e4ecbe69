"""Worker processes and Ray."""
