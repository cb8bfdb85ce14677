"""The course's model measured: one configuration, many in a process each, attention alone, and one table of them.

Commands: `profiling.run`, `profiling.benchmark`, `profiling.nsys`, `profiling.attention`, `profiling.precision`.

This room may import `model` and all other rooms of `profiling`; only the course's commands import it.
"""
