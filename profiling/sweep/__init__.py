"""Many configurations, one process each; every result is a line of a file."""
