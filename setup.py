"""Where the packages are: `nvtx_kernels.analysis`, `.model` and `.profiling` lie next to `nvtx_kernels/`."""

from setuptools import find_packages, setup

FOLDERS = ("analysis", "model", "profiling")

setup(
    package_dir={f"nvtx_kernels.{folder}": folder for folder in FOLDERS},
    packages=[
        "nvtx_kernels",
        *(f"nvtx_kernels.{name}" for folder in FOLDERS for name in find_packages(include=[folder, f"{folder}.*"])),
    ],
)
