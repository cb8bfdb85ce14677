"""From a `Trace` to an `Attribution`: which ranges caused each piece of work.

This room may import `readers`, `moments`, `report` and what is below them. It promises that every piece of work
has one node or none, that no rule loses work or counts it twice, and that a trace is left as it was read.
"""
