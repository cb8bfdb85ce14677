"""What kind of work a kernel does, read from its demangled name by the table of `category_rules`.

The patterns run in RE2 (through Arrow), whose time is linear in the length of any name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..support import arrow
from .category_rules import RULES
from .parts import in_words, split_name

#: Category -> what is in it, in the order of tables. The last three are not kernels; they repeat the kind.
MEANINGS = {
    "gemm": "matrix products, with matrix-vector, dot and split-K",
    "attention": "fused attention, forward and backward",
    "convolution": "convolutions, their gradients and layout offsets",
    "elementwise": "one output element per input element: arithmetic, activations, masks, fills",
    "reduction": "sums, means, extrema, norms of vectors, losses, pooling",
    "softmax": "softmax and log-softmax in one kernel",
    "normalization": "layer, RMS, batch, group and weight norm",
    "copy": "copies, casts, quantization, concatenation, transposition, padding",
    "index": "gather, scatter, indexing, embeddings",
    "rng": "random numbers and dropout",
    "scan": "sorting, prefix sums, selection, top-k",
    "linalg": "factorizations, triangular solves, eigenvalues, Fourier transforms",
    "optimizer": "multi-tensor and fused optimizer kernels",
    "communication": "collectives and transfers between GPUs",
    "other": "what no rule knows",
    "memcpy": "copies between memories, not by a kernel",
    "memset": "memory fills, not by a kernel",
    "graph": "CUDA graphs launched whole, without their kernels",
}

#: Names matched together, which bounds the memory that millions of them take.
_AT_ONCE = 65_536


#: Rules in a row with the same answer and the same `inside` are one pattern, so a name passes few of them.
_Group = tuple[str, bool, str, bool, str]
_GROUPS: list[_Group] = [
    (category, helper, inside, by_words, "|".join(rule.pattern for rule in rules))
    for (category, helper, inside, by_words), rules in groupby(
        RULES, key=lambda rule: (rule.category, rule.helper, rule.inside, bool(rule.words))
    )
]


def _matches(texts: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    """Return, per text, whether `pattern` occurs in it: bool (n,)."""
    matches: npt.NDArray[np.bool_] = arrow.to_numpy(pc.match_substring_regex(texts, f"(?s){pattern}")).astype(
        np.bool_
    )
    return matches


@lru_cache(maxsize=4)  # a command asks for the same names several times
def _first_groups(names: tuple[str, ...]) -> list[int]:
    """Return the index of the first group that matches each name, or -1."""
    parts = [split_name(name) for name in names]
    heads, insides = arrow.binary(head for head, _ in parts), arrow.binary(inside for _, inside in parts)
    words = arrow.binary(in_words(head) for head, _ in parts)
    group = np.full(len(parts), -1, dtype=np.int64)
    left = np.arange(len(parts))
    for number, (_, _, inside, by_words, pattern) in enumerate(_GROUPS):
        if not len(left):
            break
        hit = _matches((words if by_words else heads).take(arrow.from_numpy(left)), pattern)
        if inside:
            hit[hit] = _matches(insides.take(arrow.from_numpy(left[hit])), inside)
        group[left[hit]] = number
        left = left[~hit]
    indices: list[int] = group.tolist()
    return indices


def _groups(names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield for each name its category and whether it only helps a GEMM."""
    for begin in range(0, len(names), _AT_ONCE):
        for group in _first_groups(tuple(names[begin : begin + _AT_ONCE])):
            yield _GROUPS[group][:2] if group >= 0 else ("other", False)


def classify(names: Sequence[str]) -> list[tuple[str, bool]]:
    """Return each name's category, and whether one launch of it is one matrix product."""
    return [(category, category == "gemm" and not helper) for category, helper in _groups(names)]


def categorize(names: Sequence[str]) -> list[str]:
    """Return the category of each demangled kernel name or recorded operator."""
    return [category for category, _ in _groups(names)]


def gemm_launches(names: Sequence[str]) -> list[bool]:
    """Return, per name, whether one launch of it is one matrix product: a GEMM, not a split-K reduction."""
    return [launch for _, launch in classify(names)]
