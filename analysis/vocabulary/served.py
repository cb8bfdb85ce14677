"""What a serving engine's step held, by its name: prompts and generating requests, and the tokens of each."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from .range_names import SERVED_NAMES

_PATTERNS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in SERVED_NAMES)
#: The numbers' names, in the patterns and here.
NUMBERS = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")


class Held(NamedTuple):
    """What one step computed: prompts (prefill) and the next tokens of requests (decode); None where unsaid."""

    prefill_requests: int | None = 0
    prefill_tokens: int | None = 0
    decode_requests: int | None = 0
    decode_tokens: int | None = 0

    @property
    def tokens(self) -> int | None:
        """All tokens that it computed."""
        known = self.prefill_tokens is not None and self.decode_tokens is not None
        return (self.prefill_tokens or 0) + (self.decode_tokens or 0) if known else None


@cache
def held(name: str) -> Held | None:
    """Return what a step's name says that it held; None where it says nothing of it.

    A name of prompts alone says nothing of generation: there was none. One that counts both requests together,
    or no tokens, leaves those unsaid.
    """
    for pattern in _PATTERNS:
        if match := pattern.fullmatch(name.strip()):
            numbers = {key: int(text) for key, text in match.groupdict().items() if text is not None}
            if "prefill_requests" in numbers and "decode_requests" in numbers:  # of both, tokens may be unsaid
                unsaid = dict.fromkeys(key for key in NUMBERS if key not in numbers and numbers[_requests(key)])
                return Held(**{**unsaid, **numbers})
            return Held(**numbers)
    return None


def _requests(key: str) -> str:
    return f"{key.split('_')[0]}_requests"
