"""From an `Attribution` to a `Report`: sums of work by range, kernel, category and phase.

This room may import `measures`, `account` and what is below them. It promises that the self work of all ranges,
with what is outside, ambiguous or warm-up, is all GPU work of the report, to the nanosecond.
"""
