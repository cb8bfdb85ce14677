"""The names in a shared copy: private values cut out of them, threads and marks by known words only."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

from analysis.readers.nsys_trace import RUN_MARK
from analysis.scrubbing.allowed import RUN_FACTS, RUN_FACTS_BY_RANGE, Role
from analysis.scrubbing.patterns import REPLACED
from analysis.scrubbing.renaming import Renaming
from analysis.tables import PATH_SEPARATOR
from analysis.vocabulary import AUTOGRAD_THREADS, WORKER_THREADS, is_library_domain

# Threads whose names say nothing of a program: the interpreter's, and those that PyTorch and CUDA name.
PUBLIC_THREADS = re.compile(r"python[0-9.]*|pt_[a-z_]+\d*|cuda-EvtHandlr|cuda[0-9a-f]+|Thread-\d+|MainThread")
CALLS = re.compile(r"cu[A-Za-z]\w*")
CACHED_NAMES, LONGEST_CACHED = 1 << 16, 1 << 10

# What PyTorch appends to an operator's name. The sequence number links it; nothing reads the rest.
_FIRST_APPENDED = re.compile(r", (?:seq|op_id|sizes) = ")
_APPENDED = re.compile(
    r"(?s)((?:, seq = \d{1,17})?)(?:, op_id = (?:(?!, seq = ).)*|, sizes = (?:(?!, seq = |, op_id = ).)*)?\Z"
)

Rule = Callable[[str], str | None]
_NOTHING = object()


class Names:
    """Says what may stand in a text's place, by what the text is; None: nothing may."""

    def __init__(self, *, rename_ranges: bool = False, own_words: Mapping[str, str] | None = None) -> None:
        self.cut: Counter[str] = Counter()  # distinct private values cut out, by the word that stands for them
        self.renaming = Renaming() if rename_ranges else None
        self._words: dict[tuple[str, str], str] = {}
        self._own_words = dict(own_words or {})
        self._own = _any_of(self._own_words)
        self._bare: Callable[[str], str] = self.renaming.name if self.renaming else self.cleaned
        self._cached = lru_cache(CACHED_NAMES)(self._bare)
        self.rules: dict[Role, Rule] = {
            Role.KERNEL: self.cleaned,
            Role.RANGE: self._range,
            Role.DOMAIN: lambda text: text if is_library_domain(text) else self._range(text),
            Role.MARK: self._mark,
            Role.THREAD: thread_name,
            Role.CALL: lambda text: text if CALLS.fullmatch(text) else None,
            Role.FACT: self.cleaned,
        }

    def cleaned(self, text: str) -> str:
        """Put a numbered word in the place of each private value, the same one wherever the value stands."""
        for word, pattern in REPLACED.items():
            text = pattern.sub(partial(self._word, word), text)
        return self._own.sub(lambda found: self._word(self._own_words[found[0]], found), text)

    def _range(self, text: str) -> str:
        first = _FIRST_APPENDED.search(text)
        appended = _APPENDED.match(text, first.start()) if first else None
        bare, link = (text[: appended.start()], appended[1]) if appended else (text, "")
        return (self._cached if len(bare) <= LONGEST_CACHED else self._bare)(bare) + link

    def _word(self, word: str, found: re.Match[str]) -> str:
        return self._numbered(word, found[0])

    def _numbered(self, word: str, value: str) -> str:
        key = word, value
        if key not in self._words:
            self.cut[word] += 1
            self._words[key] = f"{word}_{self.cut[word]}"
        return self._words[key]

    def _mark(self, text: str) -> str | None:
        """Return what a run of ours wrote about itself, known facts only; of any other mark nothing."""
        if not text.startswith(RUN_MARK):
            return None
        try:
            facts = json.loads(text.removeprefix(RUN_MARK))
        except (ValueError, RecursionError):
            return None
        if not isinstance(facts, dict):
            return None
        known = {key: self._fact(key, value) for key, value in facts.items() if key in RUN_FACTS}
        for key, value in facts.items():
            if not _is_kept(value, known.get(key, _NOTHING)):
                self._numbered("unknown fact", key)
        return text if known == facts else RUN_MARK + json.dumps(known, separators=(",", ":"))

    def _fact(self, key: str, value: Any) -> Any:
        if isinstance(value, dict) and key in RUN_FACTS_BY_RANGE:
            return {self._path(path): number for path, number in value.items() if _is_number(number)}
        if isinstance(value, str):
            return self.cleaned(value)
        return value if _is_number(value) else None

    def _path(self, path: str) -> str:
        return PATH_SEPARATOR.join(self._range(name) for name in path.split(PATH_SEPARATOR))


def thread_name(text: str) -> str | None:
    """Return a thread's name as far as it is made of known words: Linux names threads after programs."""
    if PUBLIC_THREADS.fullmatch(text):
        return text
    words = [found[0] for found in (AUTOGRAD_THREADS.search(text), WORKER_THREADS.search(text)) if found]
    return " ".join(dict.fromkeys(words)) or None


def _is_kept(fact: Any, kept: Any) -> bool:
    """Tell whether a fact of the run is in the copy; what is cut out of its texts is counted there."""
    if isinstance(fact, dict) and isinstance(kept, dict):
        return len(fact) == len(kept)
    return (isinstance(fact, str) and isinstance(kept, str)) or bool(fact == kept)


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Match any of the words, and nothing where there are none."""
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{longest_first or '(?!)'})(?![A-Za-z0-9])")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)
