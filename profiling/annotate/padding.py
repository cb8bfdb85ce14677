"""How much of the models' batches is padding that no sample needs, as where all are padded to a fixed length.

    input_ids   7 4 9 2 0 0 0 0      the longest sample has 5 positions of 8: the last three hold one number in
                3 8 1 5 6 0 0 0      all rows, and are computed in vain
                5 2 0 0 0 0 0 0

Batches of some calls are held, and looked at when the steps have ended, so that no step computes anything more.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from ..harmless import forgiving
from .given import elements_of, shape_of

#: Tokens have rows and positions, so many of these at least, and more numbers than a mask has.
DIMENSIONS, FEWEST_POSITIONS, OF_MASK = 2, 32, 1
INTEGERS = frozenset({torch.int64, torch.int32})
#: How deep containers of arguments are looked into.
DEPTH = 4
#: How many calls' batches are held, and how many numbers one may have.
MOST_CALLS, MOST_NUMBERS = 16, 1 << 22

Batch = tuple[torch.Tensor, ...]

_held: list[Batch] = []
_is_listening = False


def listen() -> None:
    """Hold the batches of the next calls of annotated models."""
    global _is_listening
    _held.clear()
    _is_listening = True


def hear(arguments: object) -> None:
    """Hold the tokens of a call, and what else has their shape, such as a mask and labels."""
    if not _is_listening or len(_held) == MOST_CALLS:
        return
    tables = [*_tables(arguments, DEPTH)]
    batch = tuple(tensor for tensor, sizes in tables if sizes == tables[0][1])
    if batch:
        _held.append(batch)


@forgiving("how much of a batch is padding is not known")
def padding() -> dict[str, int]:
    """Return the fact of a run: how many positions batches have on average, and how many of these are used.

    It is missing where no call since `listen` had tokens, or all positions are used.
    """
    global _is_listening
    batches, _is_listening = [*_held], False
    _held.clear()
    lengths = [(batch[0].shape[1], _used(batch)) for batch in batches if int(batch[0].max()) > OF_MASK]
    positions, used = (sum(column) / len(lengths) for column in zip(*lengths, strict=True)) if lengths else (0, 0)
    return {"positions": round(positions), "used_positions": round(used)} if used < positions else {}


def _tables(value: object, depth: int) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Yield the tensors in a call's arguments that may have the tokens of a batch, and their sizes."""
    if isinstance(value, torch.Tensor):
        shape = shape_of(value)
        if shape is not None and shape.dtype in INTEGERS and _is_of_tokens(shape.sizes):
            yield value, shape.sizes
        return
    for part in elements_of(value) if depth else ():
        yield from _tables(part, depth - 1)


def _is_of_tokens(sizes: tuple[int, ...]) -> bool:
    return len(sizes) == DIMENSIONS and sizes[1] >= FEWEST_POSITIONS and 0 < prod(sizes) <= MOST_NUMBERS


def _used(batch: Batch) -> int:
    """Return how many positions are before those at the end that hold one number in all rows, or behind such."""
    positions = batch[0].shape[1]
    varying = [table for table in batch if int(table.min()) < int(table.max())]
    at_end = min((_alike_at_end(table) for table in varying), default=0)
    at_begin = min((_alike_at_end(table.flip(1)) for table in varying), default=0)
    return positions - max(at_end, at_begin)


def _alike_at_end(table: torch.Tensor) -> int:
    """Return how many columns at the end of a table hold its last number in all rows."""
    is_alike = (table == table[-1, -1]).all(0)
    return int(is_alike.flip(0).long().cumprod(0).sum())
