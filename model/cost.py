"""What the model's ranges must compute and move, from its shapes alone.

FLOPs are the model's arithmetic, whatever kernels do it:

- a matrix product is 2 per multiply-add, and its backward is two products of the same size;
- the attention's softmax is 5 per score (maximum, subtract, exponential, sum, divide), its backward 4 per
  score (multiply, sum, subtract, multiply: dS = P * (dP - sum(dP * P)));
- the scale is 1 per score in either direction;
- norms, rotary positions, activation, mask, residuals and loss are not counted: memory bounds them.

Masked scores count like the others (the reference computes them); a fused attention's recomputation does
not. Bytes are the least that a range must move: every operand read once and every result written once, per
matrix product and per step of the formula, all at the width of one element. Sums of gradients at a fan-out
and gradient accumulation are not counted.

A cost is a range's own, without the ranges inside it: over all ranges, costs add up. Paths begin with the
phase: `("forward", "layer 0", "attention", "computing softmax")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .config import Attention, ModelConfig

Path = tuple[str, ...]
Phase = Literal["forward", "backward"]

SOFTMAX_FLOPS = {"forward": 5, "backward": 4}
ID_BYTES = 8
MASK_BYTES = 1


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes of one range, over one step."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Shape:
    """The sizes that a cost depends on; `tokens` is batch times context."""

    config: ModelConfig
    batch: int
    context: int
    element_bytes: int

    @property
    def tokens(self) -> int:
        """Number of tokens in a step: B·T."""
        return self.batch * self.context

    @property
    def scores(self) -> int:
        """Number of attention scores of one layer: B·H·T²."""
        return self.batch * self.config.heads * self.context**2

    def product(self, phase: Phase, rows: int, inner: int, columns: int, count: int = 1) -> Cost:
        """Cost of `count` matrix products (rows, inner) x (inner, columns), or of their backward."""
        times = count * (2 if phase == "backward" else 1)
        elements = rows * inner + inner * columns + rows * columns
        return Cost(2 * times * rows * inner * columns, times * elements * self.element_bytes)

    def moves(self, elements: int, *, other_bytes: int = 0, flops: int = 0) -> Cost:
        """Cost of reading and writing `elements` elements, and `other_bytes` of another type."""
        return Cost(flops, elements * self.element_bytes + other_bytes)


def cost_by_range(
    config: ModelConfig, batch: int, context: int, *, attention: Attention = "reference", element_bytes: int = 4
) -> dict[Path, Cost]:
    """Return the cost of every range of one step, forward and backward, by its path from the phase down.

    `element_bytes` is the width of the type that the model computes in: 4 for fp32 and tf32, 2 for bf16 and
    fp16.
    """
    shape = Shape(config, batch, context, element_bytes)
    phases: tuple[Phase, ...] = ("forward", "backward")
    return {(phase, *path): cost for phase in phases for path, cost in _ranges_of_phase(shape, phase, attention)}


def matmul_flops(config: ModelConfig, batch: int, context: int) -> int:
    """Return the FLOPs of one forward's matrix products: 2·B·T·(L·(4d² + 3·d·d_ff) + V·d) + L·4·B·H·T²·d_head."""
    d = config.d_model
    weights = config.layers * (4 * d * d + 3 * d * config.d_ff) + config.vocabulary * d
    return 2 * batch * context * weights + config.layers * attention_matmul_flops(config, batch, context)


def attention_matmul_flops(config: ModelConfig, batch: int, context: int) -> int:
    """Return the FLOPs of one layer's scores and final matmul together, forward: 4·B·H·T²·d_head."""
    return 4 * batch * config.heads * context**2 * config.d_head


def _ranges_of_phase(shape: Shape, phase: Phase, attention: Attention) -> Iterator[tuple[Path, Cost]]:
    config, tokens = shape.config, shape.tokens
    forward = phase == "forward"
    stream, logits = tokens * config.d_model, tokens * config.vocabulary
    table = stream if forward else config.vocabulary * config.d_model
    yield ("embedding",), shape.moves(stream + table, other_bytes=tokens * ID_BYTES)
    for index in range(config.layers):
        for path, cost in _ranges_of_layer(shape, phase, attention):
            yield (f"layer {index}", *path), cost
    yield ("final norm",), _norm(shape, phase)
    yield ("lm head",), shape.product(phase, tokens, config.d_model, config.vocabulary)
    yield ("loss",), shape.moves(logits if forward else 2 * logits, other_bytes=tokens * ID_BYTES)


def _ranges_of_layer(shape: Shape, phase: Phase, attention: Attention) -> Iterator[tuple[Path, Cost]]:
    config, tokens = shape.config, shape.tokens
    stream, hidden = tokens * config.d_model, tokens * config.d_ff
    if phase == "forward":
        yield (), shape.moves(6 * stream)
        yield ("attention",), shape.moves(2 * stream)
    yield ("attention norm",), _norm(shape, phase)
    for name in ("q projection", "k projection", "v projection", "output projection"):
        yield ("attention", name), shape.product(phase, tokens, config.d_model, config.d_model)
    yield ("attention", "rope"), shape.moves(4 * stream + shape.context * config.d_head)
    ranges_of_attention = _reference_attention if attention == "reference" else _fused_attention
    for path, cost in ranges_of_attention(shape, phase):
        yield ("attention", *path), cost
    yield ("ffn norm",), _norm(shape, phase)
    for name in ("gate projection", "up projection"):
        yield ("ffn", name), shape.product(phase, tokens, config.d_model, config.d_ff)
    yield ("ffn", "activation"), shape.moves((3 if phase == "forward" else 5) * hidden)
    yield ("ffn", "down projection"), shape.product(phase, tokens, config.d_ff, config.d_model)


def _reference_attention(shape: Shape, phase: Phase) -> Iterator[tuple[Path, Cost]]:
    config, scores, context = shape.config, shape.scores, shape.context
    heads = shape.batch * config.heads
    forward = phase == "forward"
    mask_bytes = (2 if forward else 1) * context**2 * MASK_BYTES
    of_scores = ("computing attention scores",)
    yield of_scores, shape.product(phase, context, config.d_head, context, heads)
    yield (*of_scores, "scale"), shape.moves(2 * scores, flops=scores)
    yield (*of_scores, "mask"), shape.moves(2 * scores, other_bytes=mask_bytes)
    softmax = SOFTMAX_FLOPS[phase] * scores
    yield ("computing softmax",), shape.moves((2 if forward else 3) * scores, flops=softmax)
    yield ("final matmul",), shape.product(phase, context, context, config.d_head, heads)


def _fused_attention(shape: Shape, phase: Phase) -> Iterator[tuple[Path, Cost]]:
    flops = sum(cost.flops for _, cost in _reference_attention(shape, phase))
    stream = shape.tokens * shape.config.d_model
    yield ("scaled dot product attention",), shape.moves((4 if phase == "forward" else 8) * stream, flops=flops)


def _norm(shape: Shape, phase: Phase) -> Cost:
    stream, width = shape.tokens * shape.config.d_model, shape.config.d_model
    return shape.moves(2 * stream + width if phase == "forward" else 3 * stream + 2 * width)
