"""The names in a shared copy: private values cut out of them, threads and marks by known words only."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ..readers.written import ANNOTATED, FLOPS_MARK, MODEL_MARK, RUN_MARK, parsed, sane_counts
from ..vocabulary import (
    AUTOGRAD_THREADS,
    BACKWARD,
    BACKWARD_OPERATORS,
    ENGINE_OPERATOR,
    FORWARD,
    LIBRARY_RANGES,
    OPERATOR_RANGES,
    OPTIMIZER,
    PATH_SEPARATOR,
    PHASES,
    WORKER_THREADS,
    is_library_domain,
    is_step,
    is_warm_up,
    opens_phase,
    phase_of,
)
from .allowed import GPU_NAME, RUN_FACT, RUN_FACTS, RUN_FACTS_BY_RANGE, Role
from .looks import LOOKS, Span
from .own_words import any_of

# Threads whose names say nothing of a program: the interpreter's, and those that PyTorch and CUDA name.
PUBLIC_THREADS = re.compile(r"python[0-9.]*|pt_[a-z_]+\d*|cuda-EvtHandlr|cuda[0-9a-f]+|Thread-\d+|MainThread")
CALLS = re.compile(r"cu[A-Za-z]\w*")
# What annotation's mark may say of a module's class, and of what its steps count.
CLASS, COUNTED, PATH_OF_MODULES = re.compile(r"[A-Za-z_]\w{0,99}"), re.compile(r"steps of [A-Za-z_]\w{0,99}"), "/"
# PyTorch's own operators, and which part of a counted step a mark holds.
OPERATOR, PARTS_OF_COUNTS = re.compile(r"(?:aten|prims?|c10d|_c10d_functional)\.\w+"), ("version", "part", "parts")
CACHED_NAMES, LONGEST_CACHED = 1 << 16, 1 << 10
# A longer name is replaced whole: to look through it would take minutes.
LONGEST = 1 << 16

# What PyTorch appends to an operator's name. The sequence number links it; nothing reads the rest.
_FIRST_APPENDED = re.compile(r", (?:seq|op_id|sizes) = ")
_APPENDED = re.compile(
    r"(?s)((?:, seq = \d{1,17})?)(?:, op_id = (?:(?!, seq = ).)*|, sizes = (?:(?!, seq = |, op_id = ).)*)?\Z"
)

Rule = Callable[[str], str | None]
_NOTHING = object()


class Names:
    """Chooses the replacement for a text, by what the text is; None removes it."""

    def __init__(self, *, rename_ranges: bool = False, own_words: Mapping[str, str] | None = None) -> None:
        self.cut: Counter[str] = Counter()  # distinct private values cut out, by the word that replaces them
        self.renaming = Renaming() if rename_ranges else None
        self._words: dict[tuple[str, str], str] = {}
        self._own_words = {value.lower(): word for value, word in (own_words or {}).items()}
        self._own = any_of(self._own_words)
        self.bare: Callable[[str], str] = self.renaming.name if self.renaming else self.cleaned
        self._cached = lru_cache(CACHED_NAMES)(self.bare)
        self.rules: dict[Role, Rule] = {
            Role.KERNEL: self.cleaned,
            Role.RANGE: self._range,
            Role.DOMAIN: lambda text: text if is_library_domain(text) else self._range(text),
            Role.CATEGORY: lambda text: text if text in ANNOTATED else None,
            Role.MARK: self._mark,
            Role.THREAD: thread_name,
            Role.CALL: lambda text: text if CALLS.fullmatch(text) else None,
            Role.FACT: self.cleaned,
            Role.GPU: lambda text: text if GPU_NAME.fullmatch(text) else self.numbered("gpu", text),
        }

    def cleaned(self, text: str) -> str:
        """Replace each private value by a numbered word, the same one wherever the value occurs."""
        if len(text) > LONGEST:
            return self.numbered("name", text)
        # What holds a NUL between any two letters, as in UTF-16, looks like nothing but without them.
        shown = self._replaced(text)
        bare = shown.replace("\0", "")
        return shown if bare == shown or (found := self._replaced(bare)) == bare else found

    def _replaced(self, text: str) -> str:
        text = self._own.sub(lambda found: self.numbered(self._word_of(found[0]), found[0]), text)
        for word, find in LOOKS.items():
            if spans := find(text):
                text = self._cut(text, word, spans)
        return text

    def _cut(self, text: str, word: str, spans: list[Span]) -> str:
        parts, last = [], 0
        for begin, end in spans:
            parts += [text[last:begin], self.numbered(word, text[begin:end])]
            last = end
        return "".join([*parts, text[last:]])

    def _range(self, text: str) -> str:
        first = _FIRST_APPENDED.search(text)
        appended = _APPENDED.match(text, first.start()) if first else None
        bare, link = (text[: appended.start()], appended[1]) if appended else (text, "")
        return (self._cached if len(bare) <= LONGEST_CACHED else self.bare)(bare) + link

    def _word_of(self, value: str) -> str:
        """Return the word that replaces a private word of the report; a folder's replaces all below it."""
        known = self._own_words.get(value.lower())
        return known or next(word for own, word in self._own_words.items() if value.lower().startswith(own))

    def numbered(self, word: str, value: str) -> str:
        """Return the numbered word that replaces a value."""
        key = word, value
        if key not in self._words:
            self.cut[word] += 1
            self._words[key] = f"{word}_{self.cut[word]}"
        return self._words[key]

    def _mark(self, text: str) -> str | None:
        """Return what `nvtx-kernels run` or annotation wrote, known facts only; nothing for any other mark."""
        if text.startswith(MODEL_MARK):
            said = self._of_model(parsed(text.removeprefix(MODEL_MARK)))
            return MODEL_MARK + json.dumps(said, ensure_ascii=False) if said else None
        if text.startswith(FLOPS_MARK):
            said = self._of_counts(parsed(text.removeprefix(FLOPS_MARK)))
            return FLOPS_MARK + json.dumps(said, ensure_ascii=False, separators=(",", ":")) if said else None
        facts = parsed(text.removeprefix(RUN_MARK)) if text.startswith(RUN_MARK) else None
        if facts is None:
            return None
        known = {key: self._fact(key, value) for key, value in facts.items() if key in RUN_FACTS}
        for key, value in facts.items():
            if not _is_kept(value, known.get(key, _NOTHING)):
                self.numbered("unknown fact", key)
        return text if known == facts else RUN_MARK + json.dumps(known, separators=(",", ":"))

    def _of_model(self, said: dict[str, Any] | None) -> dict[str, Any]:
        """Return annotation's facts about a model and its steps, without classes if ranges are renamed."""
        facts = said or {}
        kept: dict[str, Any] = {
            key: facts[key] for key in ("version", "modules") if isinstance(facts.get(key), int)
        }
        numbers = facts.get("categories")
        if isinstance(numbers, dict):
            kept["categories"] = {name: numbers[name] for name in ANNOTATED if isinstance(numbers.get(name), int)}
        steps, model, classes = (facts.get(key) for key in ("steps", "model", "classes"))
        if isinstance(steps, str) and COUNTED.fullmatch(steps):
            kept["steps"] = "steps of an optimizer" if self.renaming else self.cleaned(steps)
        if isinstance(model, str) and isinstance(classes, dict) and not self.renaming:
            kept["model"] = self._range(model)
            kept["classes"] = {
                PATH_OF_MODULES.join(map(self._range, path.split(PATH_OF_MODULES))): self.cleaned(name)
                for path, name in classes.items()
                if isinstance(name, str) and CLASS.fullmatch(name)
            }
        return kept

    def _of_counts(self, said: dict[str, Any] | None) -> dict[str, Any]:
        """Return what a counted step says: numbers, by paths of ranges and by PyTorch's own operators."""
        counts = sane_counts(said or {})
        kept: dict[str, Any] = {
            key: n for key, n in (said or {}).items() if key in PARTS_OF_COUNTS and isinstance(n, int)
        }
        kept["calls"] = {self._path(path): number for path, number in counts.calls.items()}
        kept["uncounted"] = {
            name: numbers for name, numbers in counts.uncounted.items() if OPERATOR.fullmatch(name)
        }
        kept |= {"peaks": counts.peaks} if counts.peaks else {}
        kept["ranges"] = {
            phase: {self._path(path): figures for path, figures in paths.items()}
            for phase, paths in counts.ranges.items()
            if phase in PHASES
        }
        return kept

    def _fact(self, key: str, value: Any) -> Any:
        if isinstance(value, dict) and key in RUN_FACTS_BY_RANGE:
            return {self._path(path): number for path, number in value.items() if _is_number(number)}
        if isinstance(value, str):
            cleaned = self.cleaned(value)
            return cleaned if RUN_FACT.fullmatch(cleaned) else None
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
    """Return whether a fact of the run is in the copy; what is cut out of its texts is counted there."""
    if isinstance(fact, dict) and isinstance(kept, dict):
        return len(fact) == len(kept)
    return (isinstance(fact, str) and isinstance(kept, str)) or bool(fact == kept)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


# Names that PyTorch and NVIDIA's libraries give. An operator of another namespace is a program's own.
PUBLIC = re.compile(
    r"(?:aten|c10d|_c10d_functional|prims?|quantized|torchvision)::\w+"
    r"|[A-Z]\w*Backward\d|torch\.(?:nn\.functional|Tensor|functional|linalg|autograd)\.[\w.]+"
    r"|torch::autograd::\w+|nccl:\w+|record_param_comms|detach_?"
    r"|(?:nccl|cublas|cublasLt|cudnn|cufft|cusparse|cusolver|myelin)[A-Z]\w*|(?:cub|thrust)::[\w:]+"
)
PUBLIC_PHASES = re.compile(
    r"(?i)(?:forward|fwd|(?:loss\.)?backward|bwd|optimi[sz]er|optim|zero[_ ]grad)"
    r"(?:[-_ ]?(?:pass|step))?(?:[-_ ]?\d+)?"
)
PUBLIC_WARM_UPS = re.compile(r"(?i)warm[-_ ]?up(?:[-_ ]?(?:steps?|iterations?))?(?:[-_ ]?\d+)?")

_INDEX = re.compile(r"(?<![A-Za-z0-9])(?:\d+|\*)(?![A-Za-z0-9])")
_BACKWARD_ENDING = re.compile(r"Backward\d*$")

# Names of a part of a phase, which opens none.
PARTS = {FORWARD: "loss: {}", BACKWARD: "FSDP::pre_backward ({})", OPTIMIZER: "zero_grad: {}"}

# What a new name is made of, by what the old one means: the first test that holds. `{}` is the letter.
SHAPES: tuple[tuple[Callable[[str], object], str], ...] = (
    (is_warm_up, "warmup {}"),
    (opens_phase, "{phase}: {}"),
    *((lambda name, phase=phase: phase_of(name) == phase, shape) for phase, shape in PARTS.items()),
    (LIBRARY_RANGES.match, "cub::{}"),
    (lambda name: OPERATOR_RANGES.match(name) and not _BACKWARD_ENDING.search(name), "custom::{}"),
    (lambda name: OPERATOR_RANGES.match(name) and "::" in name, "custom::{}{backward}"),
    (BACKWARD_OPERATORS.match, "{}{backward}"),
    (lambda _: True, "range {}"),
)


class Renaming:
    """Assigns new names, one for each old one."""

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
