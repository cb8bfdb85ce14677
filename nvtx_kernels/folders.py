"""The short names of a checkout's folders: `analysis` is `nvtx_kernels.analysis`; so are `model`, `profiling`.

Both names give one object per module, so an error raised under one is caught under the other, and there is one
stack of ranges. An installed `nvtx_kernels` has the long names only, and does not load this module.

From Python 3.15 on, the standard library has a package `profiling` too (PEP 799), which cProfile, and so PyTorch's
first optimizer, imports modules of. Our folder hides it, so our `__path__` ends with its folder.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

FOLDERS = ("analysis", "model", "profiling")
PACKAGE = __name__.partition(".")[0]
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


class ShortNames(MetaPathFinder):
    """Finds the modules below short names that are ours."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module of ours; None for any other, such as Python 3.15's `profiling.tracing`."""
        top, _, below = name.partition(".")
        is_ours = top in FOLDERS and below and sys.modules.get(top) is sys.modules.get(f"{PACKAGE}.{top}")
        module = find_spec(f"{PACKAGE}.{name}") if is_ours else None
        if module and module.origin and Path(module.origin).is_relative_to(STANDARD_LIBRARY / top):
            return None
        return spec_from_loader(name, _SameModule(module), origin=module.origin) if module else None


class _SameModule(InspectLoader):
    """Loads the module that has the long name."""

    def __init__(self, module: ModuleSpec) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return import_module(self.module.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.module  # the import system has just put the short name's there

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002
        return self.module.submodule_search_locations is not None

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        return self._loader().get_code(self.module.name)

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002
        return self._loader().get_source(self.module.name)

    def _loader(self) -> InspectLoader:
        loader = self.module.loader
        if not isinstance(loader, InspectLoader):
            raise ImportError(f"{self.module.name} has no code", name=self.module.name)
        return loader


def be_one(short_name: str) -> None:
    """Make a folder that is imported by its short name the same module as under its long name."""
    if not any(isinstance(finder, ShortNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, ShortNames())
    package = import_module(f"{PACKAGE}.{short_name}")
    if (hidden := STANDARD_LIBRARY / short_name).is_dir():
        package.__path__.append(str(hidden))
    sys.modules[short_name] = package
