"""New names for ranges: what a name means to the analysis stays, what it says to people goes.

Phases, steps, warm-up, operators and library ranges are told by words of `analysis.vocabulary`. Names made of
those words alone are kept; any other gets a letter, beside the word that gives it its meaning. Names that collapse
to one (`layer 3` and `layer 7`) get one letter and keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from analysis.vocabulary import (
    BACKWARD_OPERATORS,
    ENGINE_OPERATOR,
    LIBRARY_RANGES,
    OPERATOR_RANGES,
    PHASE_WORDS,
    is_step,
    is_warm_up,
    phase_of,
)

# Names that PyTorch and NVIDIA's libraries give. An operator of another namespace is a program's own.
PUBLIC = re.compile(
    r"(?:aten|c10d|_c10d_functional|prims?|quantized|torchvision)::\w+"
    r"|[A-Z]\w*Backward\d|torch\.(?:nn\.functional|Tensor|functional|linalg|autograd)\.[\w.]+"
    r"|torch::autograd::\w+|nccl:\w+|record_param_comms|detach_?"
    r"|(?:nccl|cublas|cublasLt|cudnn|cufft|cusparse|cusolver|myelin)[A-Z]\w*|(?:cub|thrust)::[\w:]+"
)
_WORDS = "|".join(re.escape(word) for words in PHASE_WORDS.values() for word in words)
PUBLIC_PHASES = re.compile(rf"(?i)(?:{_WORDS})(?:[-_ ]?(?:pass|step))?(?:[-_ ]?\d+)?")
PUBLIC_WARM_UPS = re.compile(r"(?i)warm[-_ ]?up(?:[-_ ]?(?:steps?|iterations?))?(?:[-_ ]?\d+)?")

_INDEX = re.compile(r"(?<![A-Za-z0-9])(?:\d+|\*)(?![A-Za-z0-9])")
_BACKWARD_ENDING = re.compile(r"Backward\d*$")

# What a new name is made of, by what the old one means: the first test that holds. `{}` is the letter.
SHAPES: tuple[tuple[Callable[[str], object], str], ...] = (
    (is_warm_up, "warmup {}"),
    (phase_of, "{phase} {}"),
    (LIBRARY_RANGES.match, "cub::{}"),
    (lambda name: OPERATOR_RANGES.match(name) and not _BACKWARD_ENDING.search(name), "custom::{}"),
    (lambda name: OPERATOR_RANGES.match(name) and "::" in name, "custom::{}{backward}"),
    (BACKWARD_OPERATORS.match, "{}{backward}"),
    (lambda _: True, "range {}"),
)


class Renaming:
    """Gives out new names, one for each old one."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}  # by name, with indices as `*`

    def name(self, name: str) -> str:
        """Return the new name of a range, given without what PyTorch appends to an operator's."""
        if name.startswith(ENGINE_OPERATOR):
            return ENGINE_OPERATOR + self.name(name.removeprefix(ENGINE_OPERATOR))
        if not name or is_step(name) or any(p.fullmatch(name) for p in (PUBLIC, PUBLIC_PHASES, PUBLIC_WARM_UPS)):
            return name
        shape = next(shape for meant, shape in SHAPES if meant(name))
        ending = _BACKWARD_ENDING.search(name)
        new = shape.format(self._letter(name), phase=phase_of(name), backward=ending[0] if ending else "")
        return " ".join([new, *_INDEX.findall(name)])

    def _letter(self, name: str) -> str:
        """Return letters that spell no word of the vocabulary."""
        return self.letters.setdefault(_INDEX.sub("*", name), "x" + _spelled(len(self.letters)))


def _spelled(number: int) -> str:
    """Count in letters: a, b, … z, aa, ab."""
    letters = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("a") + digit) + letters
    return letters
