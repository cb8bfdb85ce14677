"""Rules on rows and slices of tensors: lookups and distances, gradients of whole tables, slices in a loop.

one_hot      set │ scatter │ cast │ product            a row of the table, by one kernel
distances    subtract each pair │ square │ sum         torch.cdist: a product
dense_rows   set the table's gradient │ add few rows   Embedding(sparse=True): the rows alone
slices       set │ copy a slice │ add, for each slice  unbind: one kernel puts all slices together
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..support.small_numbers import begins_of, covered, next_marked
from ..support.units import count_text
from ..trace import Bools, marked
from ..vocabulary import BACKWARD, OPTIMIZER
from .gpu_rules import dropping, shortening
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .optimizer_rules import updating_class
from .symptoms import Found, Unjudged

#: How `one_hot` writes its ones, and what casts them.
WRITES_ONES, CASTS = r"scatter_fill_internal_kernel", r"copy_kernel"
#: Kernels that subtract tensors of which one is repeated, as the others are vectorized; those that square, or take
#: the size of, the differences; and those that add these up. Tensors of over 2³² bytes take several of each.
SUBTRACTS = r"^void at::native::elementwise_kernel<.*CUDAFunctor_add"
SQUARES, SUMS = r"pow_tensor|MulFunctor|AbsFunctor", r"sum_functor"
#: Differences of all pairs are so many times as large as what the kernels before wrote; and how many these are.
ALL_PAIRS, BEFORE = 8, 3
#: Of what a slice is cut, it is this share at most; and a loop has so many slices at least.
SMALL_SLICE, FEWEST_SLICES = 1 / 8, 8
#: Optimizers that take the gradients of Embedding(sparse=True), and what does in place of others:
#: https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
SPARSE = {"SGD": "SGD", "Adagrad": "Adagrad", "Adam": "SparseAdam", "AdamW": "SparseAdam"}
#: Kernels that add up the gradients of a table's rows, that set memory, and that add tensors.
ADDS_ROWS, SETS, ADDS = (
    r"sum_and_scatter|embedding_backward|compute_grad_weight",
    r"FillFunctor|memset",
    r"functor_?add|addfunctor",
)
#: A table has far more rows than a step uses if setting its gradient takes so many times what adding rows takes.
MORE_ROWS = 4
#: Adding two gradients of a table moves so many times the bytes that setting one does; of what is set, so much is
#: of different tables at least, where no other layer uses them.
ADDING, FEWEST_TABLES = 3, 0.2
FP32_BYTES = 4


def one_hot(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find products of one-hot rows with a table, which is a lookup: zeros, ones and a cast come before."""
    ones = subject.matching(WRITES_ONES) & ~subject.of_phase(BACKWARD)
    prepares = (ones | subject.matching(f"{SETS}|{CASTS}")) & subject.kernel
    product = next_marked(subject.products)
    first = begins_of(prepares)
    hot = np.flatnonzero(ones)
    hot = hot[product[hot] < len(ones)]
    hot = hot[first[product[hot] - 1] <= hot]  # nothing else is between
    if not len(hot):
        return
    work = covered(first[hot], product[hot] + 1, len(ones))
    count = count_text(round(subject.per_step(work & subject.products)))
    sentence = f"{count} products look up rows of a table by one-hot rows: F.embedding(ids, table), or table[ids]"
    short = f"F.embedding(ids, table) in place of one_hot(ids) @ table: {count} products a step"
    yield Found(dropping(work), sentence, short, work)


def distances(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find distances of all pairs of rows by their differences, which are written, squared and summed."""
    outside = ~subject.of_phase(BACKWARD)
    subtracts, squares, sums = (outside & subject.matching(pattern) for pattern in (SUBTRACTS, SQUARES, SUMS))
    squares &= ~subtracts
    first_sum = np.flatnonzero(sums[1:] & squares[:-1]) + 1
    first_square = begins_of(squares)[first_sum - 1]
    is_third = (first_square > 0) & subtracts[first_square - 1]
    first = begins_of(subtracts)[first_square[is_third] - 1]
    end = next_marked(~sums)[first_sum[is_third]]
    blocks = subject.trace.work.grid[subject.row]
    before = [blocks[np.maximum(first - back, 0)] for back in range(1, BEFORE + 1)]
    is_of_pairs = (first > 0) & (blocks[first] / ALL_PAIRS >= np.maximum.reduce(before))
    if not is_of_pairs.any():
        return
    work = covered(first[is_of_pairs], end[is_of_pairs], len(sums))
    count = count_text(round(subject.per_step(work)))
    sentence = (
        f"{count} kernels write the differences of all pairs of rows, square and add them up: torch.cdist, or "
        "|a|² − 2ab + |b|² by one product"
    )
    short = f"torch.cdist in place of (a − b)² summed: {count} kernels write all differences"
    yield Found(dropping(work), sentence, short, work)


def slices(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find slices that a loop takes of a tensor: backward sets and adds a gradient of all of it for each."""
    blocks = subject.trace.work.grid[subject.row]
    in_backward = subject.of_phase(BACKWARD) & subject.kernel
    sets, copies, adds = (in_backward & subject.matching(pattern) for pattern in (SETS, CASTS, ADDS))
    is_known = blocks[1:] > 0
    is_small = np.r_[False, is_known & (blocks[1:] <= SMALL_SLICE * blocks[:-1])]
    first = np.flatnonzero(sets[:-2] & (copies & is_small)[1:-1] & adds[2:])
    count = len(first) / subject.steps
    if count < FEWEST_SLICES:
        return
    work = marked(np.concatenate([first, first + 2]), len(sets))
    number = count_text(round(count))
    sentence = (
        f"Backward sets and adds the gradient of a whole tensor for each of {number} slices, as of x[:, t] in a "
        "loop: x.unbind(dim=1) once before the loop"
    )
    short = f"x.unbind(1) before the loop in place of x[:, t] inside: {number} slices a step"
    yield Found(dropping(work), sentence, short, work)


def dense_rows(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find tables of embeddings of which a step uses few rows, while their gradients and updates are of all.

    `aten::embedding_dense_backward` sets the gradient of the whole table first, which tells the table's bytes. The
    gradient of a second lookup is added to the first one. So is that of another layer, which has all rows: then as
    many gradients are added as are set.
    """
    parameters = subject.run_number("parameters")
    called = updating_class(subject)
    sets = _sets_tables(subject)
    if subject.peak is None or not parameters or called not in SPARSE or not sets.any():
        return
    is_long = subject.duration_ns >= 2 * subject.duration_ns[sets].max()
    adds = subject.matching(ADDS) & subject.of_phase(BACKWARD) & is_long
    tables_ns = subject.time_ns(sets) - subject.time_ns(adds) / ADDING
    if tables_ns < FEWEST_TABLES * subject.time_ns(sets):
        return
    share = min(tables_ns / 1e9 * subject.peak.bytes / (FP32_BYTES * parameters), 1.0)
    work = sets | adds | (subject.of_phase(OPTIMIZER) & subject.kernel)
    remedy = f"Embedding(sparse=True) with {SPARSE[called]}"
    sentence = (
        f"Gradients and updates are of all rows of embeddings, of which a step uses few: {remedy}; "
        "rows that a step does not use then have no momentum or weight decay"
    )
    short = f"{remedy}: all rows are updated, few are used"
    yield Found(shortening(work, np.where(sets | adds, 0.0, 1.0 - share)), sentence, short, work, cause=sets)


def _sets_tables(subject: GpuSubject) -> Bools:
    """Mark the work that sets the gradients of tables, before the kernel of the same range that adds rows to it.

    Large tables are set by several kernels, as a kernel counts in 32 bits.
    """
    in_backward = subject.of_phase(BACKWARD)
    adds = np.flatnonzero(subject.matching(ADDS_ROWS) & in_backward)
    sets = np.flatnonzero(subject.matching(SETS) & in_backward)
    table = np.searchsorted(adds, sets)
    sets, table = sets[table < len(adds)], table[table < len(adds)]
    is_of_range = subject.node[sets] == subject.node[adds[table]]
    sets, table = sets[is_of_range], table[is_of_range]
    set_ns = np.bincount(table, subject.duration_ns[sets], len(adds))
    is_large = set_ns >= MORE_ROWS * subject.duration_ns[adds]
    return marked(sets[is_large[table]], len(in_backward))
