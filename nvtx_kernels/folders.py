"""How `nvtx_kernels.analysis`, `.model` and `.profiling` are found: as the folders next to this package.

The folders can also be imported by their short names (`python -m analysis.kernels` in a checkout). Both give one
object per module, so an error raised under one name is caught under the other, and there is one stack of ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

FOLDERS = ("analysis", "model", "profiling")
HOME = Path(__file__).resolve().parents[1]
PACKAGE = __name__.partition(".")[0]


class Folders(MetaPathFinder):
    """Finds `nvtx_kernels.analysis` and the like, and the modules below our short names."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module of ours, None for any other."""
        top, _, below = name.partition(".")
        if top == PACKAGE and below in FOLDERS:
            place = HOME / below
            return spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])
        if top in FOLDERS and below and sys.modules.get(top) is sys.modules.get(f"{PACKAGE}.{top}"):
            return _same_module(name)
        return None


class _SameModule(InspectLoader):
    """Loads the module that has the full name."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return import_module(self.real.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.real  # the import system has just put the bare name's there

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002
        return self.real.submodule_search_locations is not None

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        return self._loader().get_code(self.real.name)

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002
        return self._loader().get_source(self.real.name)

    def _loader(self) -> InspectLoader:
        loader = self.real.loader
        if not isinstance(loader, InspectLoader):
            raise ImportError(f"{self.real.name} has no code", name=self.real.name)
        return loader


def _same_module(name: str) -> ModuleSpec | None:
    real = find_spec(f"{PACKAGE}.{name}")
    if real is None:
        return None
    return spec_from_loader(name, _SameModule(real), origin=real.origin)


def be_one(bare: str) -> None:
    """Make a folder imported by its short name the same module as under its full name."""
    sys.modules[bare] = import_module(f"{PACKAGE}.{bare}")


def install() -> None:
    """Let the import system find the folders; calling it once is enough."""
    if not any(isinstance(finder, Folders) for finder in sys.meta_path):
        sys.meta_path.insert(0, Folders())
