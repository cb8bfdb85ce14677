"""Which operator can make which backward node, by their names.

PyTorch's generator names a node after the native function whose derivative it is (`_create_op_prefix` in
torchgen's load_derivatives.py): `aten::_softmax` makes SoftmaxBackward0, and `aten::nll_loss_forward` makes
NllLossBackward0. A Python Function called `Swish` makes SwishBackward (torch/csrc/autograd/python_function.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trace import Bools, Int32s
from ..vocabulary import ENGINE_OPERATOR

_NODE = re.compile(r"(?P<operator>.+?)Backwards?\d*$")
# torch.library's register_autograd: GeneratedBackwardFor_mylib_swish_default, of mylib::swish.
_OF_LIBRARY = re.compile(r"GeneratedBackwardFor_(?P<operator>.+)_[A-Za-z0-9]+$")
# torch::autograd::CppNode<vision::ops::ROIAlignFunction>: a C++ Function's, whose operator has any name.
_OF_CPP = re.compile(r"(?:torch::autograd::)?CppNode<")
_ATEN = "aten::"

NOTHING, ANY_BUT_ATEN = -1, -2


@dataclass(frozen=True, slots=True)
class Makers:
    """By name id: the operator that makes a node, and what an operator makes, without and with its namespace."""

    of_node: Int32s
    as_operator: Int32s
    in_full: Int32s
    aten: Bools

    def fit(self, node: Int32s, operator: Int32s) -> Bools:
        """Return, per pair of names, whether the operator can create the node."""
        maker = self.of_node[node]
        named = (maker == self.as_operator[operator]) | (maker == self.in_full[operator])
        fits: Bools = ((maker >= 0) & named) | ((maker == ANY_BUT_ATEN) & ~self.aten[operator])
        return fits


def makers(names: Sequence[str], used: Bools) -> Makers:
    """Parse the names that are used as ranges."""
    number: dict[str, int] = {}
    of_node, as_operator, in_full = (np.full(len(names), NOTHING, np.int32) for _ in range(3))
    aten = np.zeros(len(names), np.bool_)
    for name_id in np.flatnonzero(used).tolist():
        name = names[name_id].removeprefix(ENGINE_OPERATOR)
        maker = made_by(name)
        of_node[name_id] = ANY_BUT_ATEN if _OF_CPP.match(name) else number.setdefault(maker, len(number))
        as_operator[name_id] = number.setdefault(_plain(name.rsplit("::", 1)[-1]), len(number))
        in_full[name_id] = number.setdefault(_plain(name), len(number))
        aten[name_id] = name.startswith(_ATEN)
    of_node[of_node == number.get("", NOTHING)] = NOTHING
    return Makers(of_node, as_operator, in_full, aten)


def made_by(node: str) -> str:
    """Return the plain name of the operator that makes nodes of this name; empty if none does.

    >>> made_by("NllLossBackward0"), made_by("CopySlices")
    ('nllloss', '')
    """
    match = _NODE.match(node)
    operator = match["operator"] if match else ""
    of_library = _OF_LIBRARY.match(operator)
    return _plain(of_library["operator"] if of_library else operator.rsplit("::", 1)[-1])


def _plain(name: str) -> str:
    """Normalize a name so that both sides can be compared: `nll_loss_forward` and `NllLoss` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("forward")
