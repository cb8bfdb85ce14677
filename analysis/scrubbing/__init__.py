"""Copies of reports that can be shared: everything the analysis asks of a report, and nothing else of it."""
