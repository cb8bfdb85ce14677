"""Readers turn a report file into a `Trace`; they know no presenter."""
