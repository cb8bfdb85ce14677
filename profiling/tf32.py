"""Whether fp32 products and convolutions may use TF32, by whichever of PyTorch's switches a program has set.

PyTorch 2.9 has a second switch for each (`fp32_precision`); where a program has set that, asking the older one
raises RuntimeError: https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere
"""

from __future__ import annotations

from typing import Any

import torch

#: What the older switch calls the values of the newer one.
OLDER = {"ieee": "highest", "tf32": "high", "bf16": "medium"}


def matmul_precision() -> str:
    """Return the precision of fp32 products: `highest`, `high` (TF32) or `medium`."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        newer: Any = torch.backends.cuda.matmul
        return OLDER.get(newer.fp32_precision, "highest")


def products_take_tf32() -> bool:
    """Return whether fp32 products may use TF32."""
    return matmul_precision() != "highest"


def convolutions_take_tf32() -> bool:
    """Return whether fp32 convolutions may use TF32."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        newer: Any = torch.backends.cudnn
        return bool(newer.conv.fp32_precision == "tf32")
