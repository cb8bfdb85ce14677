"""python -m analysis: list the commands."""

from nvtx_kernels.commands import modules

print(f"Commands (each has --help):\n{modules('analysis.')}")  # noqa: T201
