"""Each pattern that stands in a module ends in time on texts made to make it try much."""

import importlib
import pkgutil
import re
import time

import pytest

from nvtx_kernels import analysis

LENGTH, SECONDS = 100_000, 1.0
PIECES = (
    "a", "A", "Aa", "0", "_", " ", "::", "a::", "a.", "a/", ".", "0x", "1,", "(", "<", "[", "a b ", "-", "a_",
    "1.", "norm", "name", "nccl", "sm80_xmma_", "std::enable_if<", "void ", "torch/optim/", "a:1:", "a(1): ",
    "lambda(",
    "tuple<cute::C<1", "\n", "é", "kernel_cutlass",
)  # fmt: skip


def patterns():
    """Return every compiled pattern that stands in a module, by where."""
    found = {}
    for module in pkgutil.walk_packages(analysis.__path__, f"{analysis.__name__}."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                values = value if isinstance(value, tuple | list) else [value]
                for number, one in enumerate(values):
                    parts = one if isinstance(one, tuple) else (one,)
                    found |= {f"{module.name}.{name}.{number}": p for p in parts if isinstance(p, re.Pattern)}
    return found


PATTERNS = patterns()


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_ends_in_time_on_hostile_text(pattern):
    for piece in PIECES:
        text = piece * (LENGTH // len(piece)) + "\x01"
        text = text.encode() if isinstance(pattern.pattern, bytes) else text
        began = time.process_time()
        pattern.match(text)
        assert time.process_time() - began < SECONDS, piece
