"""What differences between algorithms, clients and seeds are worth: intervals, tests and their corrections."""
