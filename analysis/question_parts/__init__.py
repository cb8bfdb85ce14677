"""The assignment's profiling questions, (a) to (e): one module each, over a sweep of reports."""
