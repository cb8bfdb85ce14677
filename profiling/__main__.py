"""python -m profiling: list the commands."""

from nvtx_kernels.commands import modules

print(f"Commands (each has --help):\n{modules('profiling.')}")  # noqa: T201
