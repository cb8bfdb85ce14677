"""The sizes of the model, one line each (Stanford CS336, assignment 2, table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Attention = Literal["reference", "sdpa"]

VOCABULARY = 10_000
ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class ModelConfig:
    """One size: widths and counts, nothing about batch, context length or precision.

    ValueError says why no model has these.
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocabulary: int = VOCABULARY

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of {self.heads} heads: change one")
        if self.d_head % 2:
            head = f"d_model {self.d_model} / {self.heads} heads = {self.d_head}"
            raise ValueError(f"a head's width is even, for rotary positions, and {head} is odd: change the heads")

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    @property
    def parameters(self) -> int:
        """Number of parameters: 2·V·d + d + L·(4·d² + 3·d·d_ff + 2·d); no biases, untied embeddings."""
        d = self.d_model
        per_layer = 4 * d * d + 3 * d * self.d_ff + 2 * d
        return 2 * self.vocabulary * d + d + self.layers * per_layer


# The dimensions that a run may change, by the names of its options, and the fields that they are.
DIMENSIONS = {name: name for name in ("d_model", "d_ff", "layers", "heads")} | {"vocab_size": "vocabulary"}


def changed(model: Mapping[str, Any]) -> dict[str, int]:
    """Return the dimensions in a run's settings, or a row's cell, that its `size` does not have."""
    size = CONFIGS[model["size"]]
    changes = {}
    for name, field in DIMENSIONS.items():
        value = model.get(name)
        if value not in (None, getattr(size, field)):
            changes[name] = value
    return changes


def config_of(model: Mapping[str, Any]) -> ModelConfig:
    """Return the model of a run's settings, or of a row's cell: its `size`, with the given dimensions."""
    values = {DIMENSIONS[name]: value for name, value in changed(model).items()}
    return replace(CONFIGS[model["size"]], **values)


def name_of(model: Mapping[str, Any]) -> str:
    """Name the model of a run's settings, or of a row's cell: `small`, or `small, layers 4, heads 8`."""
    words = [f"{name} {value}" for name, value in changed(model).items()]
    return ", ".join([str(model["size"]), *words])


# fmt: off
CONFIGS = {
    "tiny":   ModelConfig(d_model=64,    d_ff=128,    layers=2,  heads=2, vocabulary=256),
    "small":  ModelConfig(d_model=768,   d_ff=3_072,  layers=12, heads=12),
    "medium": ModelConfig(d_model=1_024, d_ff=4_096,  layers=24, heads=16),
    "large":  ModelConfig(d_model=1_280, d_ff=5_120,  layers=36, heads=20),
    "xl":     ModelConfig(d_model=1_600, d_ff=6_400,  layers=48, heads=25),
    "2.7B":   ModelConfig(d_model=2_560, d_ff=10_240, layers=32, heads=32),
    "10B":    ModelConfig(d_model=4_608, d_ff=12_288, layers=50, heads=36),
}
# fmt: on
# Our names of the sizes whose name differs in a year's handout, and the remark on such a name.
SIZES_OF_YEAR: Mapping[str, Mapping[str, str]] = {"2024": {}, "2025": {}, "2026": {"xl": "2.7B"}}
YEARS_OF_SIZE = {"xl": "as of 2024 and 2025", "2.7B": "xl of 2026"}
YEAR = "2025"


def size_in(year: str | None, size: str) -> str:
    """Return our name of a size in a year's handout (default: `YEAR`). Raises KeyError for an unknown year."""
    return SIZES_OF_YEAR[year or YEAR].get(size, size)
