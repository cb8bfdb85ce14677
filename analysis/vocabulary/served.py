"""What a serving engine's step held, by its name: prompts and generating requests, and the tokens of each."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from . import SERVING
from .range_names import SERVED_NAMES

#: vLLM's second model runner ignores its flag for these traces (seen in 0.27.1 and 0.28.0).
SECOND_RUNNER = (
    "vLLM writes none with its second model runner, which dense models have from 0.25 on: set "
    "VLLM_USE_V2_MODEL_RUNNER=0 and record again."
)

PATTERNS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in SERVED_NAMES)


class Held(NamedTuple):
    """What one step computed: prompts (prefill) and the next tokens of requests (decode); None where unsaid."""

    prefill_requests: int | None = 0
    prefill_tokens: int | None = 0
    decode_requests: int | None = 0
    decode_tokens: int | None = 0

    @property
    def tokens(self) -> int | None:
        """All tokens that it computed."""
        if self.prefill_tokens is None or self.decode_tokens is None:
            return None
        return self.prefill_tokens + self.decode_tokens


#: The numbers' names, in the patterns and here.
NUMBERS = Held._fields


@cache
def held(name: str) -> Held | None:
    """Return the requests and tokens in a step's name; None if it has none.

    A name with prompts only means that nothing was generated. Counts that a name adds up, or lacks, are unknown.
    """
    for pattern in PATTERNS:
        if match := pattern.fullmatch(name.strip()):
            numbers: dict[str, int | None] = {
                key: int(text) for key, text in match.groupdict().items() if text is not None
            }
            if numbers.keys() >= {"prefill_requests", "decode_requests"}:  # of both, tokens may be unsaid
                for phase in SERVING:
                    if numbers[f"{phase}_requests"]:
                        numbers.setdefault(f"{phase}_tokens")
            return Held(**numbers)
    return None
