"""The sizes of the model, one line each (Stanford CS336, assignment 2, table 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["reference", "sdpa"]

VOCABULARY = 10_000
ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class ModelConfig:
    """One size: widths and counts, nothing about batch, context length or precision."""

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocabulary: int = VOCABULARY

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
