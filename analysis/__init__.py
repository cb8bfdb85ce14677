"""Read a profile, attribute every piece of GPU work to the ranges that caused it, and rank the kernels."""
