"""Call a function when the program has imported a module that takes seconds to import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Waiting(MetaPathFinder):
    """Finds one module as Python would, and acts after it has run."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            self._act()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


def after_import(name: str, act: Callable[[], None]) -> None:
    """Call a function now if a module is imported, else right after its import."""
    if name in sys.modules:
        act()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(name, act))
