"""What kind of work a kernel does, read from its demangled name by the table of `category_rules`.

The patterns run in RE2 (through Arrow), whose time is linear in the length of any name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..support import arrow
from .category_rules import RULES
from .parts import in_words, operator_of_node, split_name

#: Category -> what is in it, in the order of tables. The last three are not kernels; they repeat the kind.
MEANINGS = {
    "gemm": "matrix products, with matrix-vector, dot and split-K",
    "attention": "fused attention, forward and backward",
    "convolution": "convolutions, their gradients and layout offsets",
    "elementwise": "one output element per input element: arithmetic, activations, masks, fills",
    "reduction": "sums, means, extrema, norms of vectors, losses, pooling",
    "softmax": "softmax and log-softmax in one kernel",
    "normalization": "layer, RMS, batch, group and weight norm",
    "copy": "copies, casts, quantization, concatenation, transposition, padding; of operators, views",
    "index": "gather, scatter, indexing, embeddings",
    "rng": "random numbers and dropout",
    "scan": "sorting, prefix sums, selection, top-k",
    "linalg": "factorizations, triangular solves, eigenvalues, Fourier transforms",
    "optimizer": "multi-tensor and fused optimizer kernels",
    "communication": "collectives and transfers between GPUs",
    "other": "kernels of an unknown category",
    "memcpy": "copies between memories, not by a kernel",
    "memset": "memory fills, not by a kernel",
    "graph": "CUDA graphs launched whole, without their kernels",
}

NONE: Mapping[str, str] = {}
#: Names matched together, which bounds the memory that millions of them take.
_AT_ONCE = 65_536


#: Rules in a row with the same answer and the same `inside` are one pattern, so a name passes few of them.
_GROUPS = [
    (category, helper, inside, by_words, "|".join(rule.pattern for rule in rules))
    for (category, helper, inside, by_words), rules in groupby(
        RULES, key=lambda rule: (rule.category, rule.helper, rule.inside, bool(rule.words))
    )
]


def classify(names: Sequence[str], by_launch: Mapping[str, str] = NONE) -> list[tuple[str, bool]]:
    """Return each name's category, and whether one launch of it is one matrix product.

    That is a GEMM, and not a split-K reduction. `by_launch` has categories of names that tell none, as
    `Trace.categories` has them.
    """
    answers: list[tuple[str, bool]] = []
    for begin in range(0, len(names), _AT_ONCE):
        some = tuple(names[begin : begin + _AT_ONCE])
        operators = [operator_of_node(name) for name in some]  # a node only calls the operators that compute
        telling = tuple(operator or name for operator, name in zip(operators, some, strict=True))
        for name, group, operator in zip(some, _first_groups(telling), operators, strict=True):
            if group < 0:
                answers.append((by_launch.get(name, "other"), False))
                continue
            category, helper = _GROUPS[group][:2]
            answers.append((category, category == "gemm" and not helper and not operator))
    return answers


def categorize(names: Sequence[str], by_launch: Mapping[str, str] = NONE) -> list[str]:
    """Return the category of each demangled kernel name or recorded operator; see `classify`."""
    return [category for category, _ in classify(names, by_launch)]


@lru_cache(maxsize=4)  # a command asks for the same names several times
def _first_groups(names: tuple[str, ...]) -> list[int]:
    """Return the index of the first group that matches each name, or -1."""
    parts = [split_name(name) for name in names]
    heads = arrow.binary(head for head, _ in parts)
    insides = arrow.binary(inside for _, inside in parts)
    words = arrow.binary(in_words(head) for head, _ in parts)

    def matches(texts: pa.Array, rows: npt.NDArray[np.int64], pattern: str) -> npt.NDArray[np.bool_]:
        is_match = pc.match_substring_regex(texts.take(arrow.from_numpy(rows)), f"(?s){pattern}")
        return arrow.to_numpy(is_match).astype(np.bool_)

    group = np.full(len(parts), -1, dtype=np.int64)
    left = np.arange(len(parts))
    for number, (_, _, inside, by_words, pattern) in enumerate(_GROUPS):
        if not len(left):
            break
        hit = matches(words if by_words else heads, left, pattern)
        if inside:
            hit[hit] = matches(insides, left[hit], inside)
        group[left[hit]] = number
        left = left[~hit]
    indices: list[int] = group.tolist()
    return indices
