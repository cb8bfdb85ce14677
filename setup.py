"""Where the packages are, and what PyPI shows of the README.

`nvtx_kernels.analysis`, `.model` and `.profiling` lie next to `nvtx_kernels/`. The README's links lead to files of
the repository, which PyPI does not have. The release workflow puts the repository's address into the variable
NVTX_KERNELS_REPOSITORY: links and pictures then lead to the files of that version's tag. Without an address, links
become plain text and pictures are left out. The README is read in a clone: where it installs `.`, PyPI's reader
installs `nvtx-kernels`.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
FOLDERS = ("analysis", "model", "profiling")
#: Folders without modules, which the package's own files read.
DATA = ("nvtx_kernels.analysis.page.assets",)
REPOSITORY = os.environ.get("NVTX_KERNELS_REPOSITORY", "").rstrip("/")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
#: A link or picture (!) whose address is no URL and no heading of the page.
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![\w+.-]+:|#)([^)]+)\)")
#: What installs from a clone: `.` or '.[profiling]', with a comment that says so.
FROM_CLONE = re.compile(r"(pip install '?)\.(\[\w+\]')?(?=\s)(?: +# in a clone of this repository)?")


def published(link: re.Match[str]) -> str:
    """Return a link to a file as PyPI can show it."""
    is_picture, text, path = link.groups()
    if not REPOSITORY:
        return "" if is_picture else text
    return f"{is_picture}[{text}]({REPOSITORY}/{'raw' if is_picture else 'blob'}/v{VERSION}/{path})"


texts = CODE.split((ROOT / "README.md").read_text("utf-8"))  # every other one is code
texts[::2] = [RELATIVE_LINK.sub(published, text) for text in texts[::2]]
for i in range(1, len(texts), 2):
    texts[i] = FROM_CLONE.sub(r"\1nvtx-kernels\2", texts[i]).replace("uvx --from . ", "uvx ")

setup(
    long_description="".join(texts),
    long_description_content_type="text/markdown",
    project_urls={
        "Documentation": f"{REPOSITORY}/blob/v{VERSION}/docs/index.md",
        "Repository": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
    }
    if REPOSITORY
    else {},
    package_dir={f"nvtx_kernels.{folder}": folder for folder in FOLDERS},
    packages=[
        "nvtx_kernels",
        *DATA,
        *(f"nvtx_kernels.{name}" for folder in FOLDERS for name in find_packages(include=[folder, f"{folder}.*"])),
    ],
)
