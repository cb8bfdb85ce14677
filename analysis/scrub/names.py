"""The texts in a shared copy: public words stay, and every other word gets a number.

A name keeps its meaning for the analysis (a phase, a step, an operator, a kernel's category), and equal words
become equal ones, so that all figures are those of the report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto
from fnmatch import translate
from functools import lru_cache
from itertools import chain, product

from nvtx_kernels import DOMAIN

from ..kernel_names.parts import compiled_parts
from ..measures.gpu_peaks import peak_of
from ..readers.stack_frames import MODULE as MODULE_CALL
from ..readers.written import ANNOTATED
from ..trace import Trace
from ..vocabulary import (
    AUTOGRAD_THREADS,
    COPIED_WORD,
    ENGINE_OPERATOR,
    PATH_SEPARATOR,
    WORKER_THREADS,
    collapsed,
    is_library_domain,
    is_operator,
    without_numbers,
)
from ..vocabulary.served import PATTERNS as SERVED
from .meanings import (
    ALSO,
    CACHED_NAMES,
    CLASSIFIED,
    KERNEL_WORDS,
    LIBRARIES,
    RANGE_SHAPES,
    classified,
    frame_meaning,
    kernel_form,
    kernel_meaning,
    meaning,
    of_any_number,
)
from .words import JOINED, MOST_DIGITS, PUNCTUATION, TOKEN, WORD, is_plain, letters, own_words, words


class Role(Enum):
    """What a text is, which decides what of it may be shared; a name can have several roles."""

    KERNEL = auto()
    COPY = auto()  # other work of a GPU: copies, memsets and graphs
    RANGE = auto()
    MODULE = auto()  # of a serving engine: a dotted path
    PATH = auto()  # of names of ranges, or of modules
    DOMAIN = auto()
    THREAD = auto()  # or a process
    FRAME = auto()  # a Python function
    FILE = auto()
    WORDS = auto()
    NOTE = auto()
    FACT = auto()  # of the recording itself: a version, or what recorded it
    GPU = auto()


# Threads whose names say nothing of a program: the interpreter's, and those that PyTorch and CUDA name.
PUBLIC_THREADS = re.compile(
    r"python[0-9.]*|pt_[a-z_]+\d*|cuda-EvtHandlr|cuda[0-9a-f]+|Thread-\d+|MainThread"
    r"|(?:thread|process) ?-?\d{1,10}"
    r"|capture of CUDA graphs|as PyTorch annotated it|by its Python stacks|of its own trace"
)
VERSION = re.compile(
    r"\d{1,9}(?:\.\d{1,9}){0,4}(?:-\d{1,12}v\d)?(?:(?:a|b|rc|\.dev|\.post)\d{1,9})?(?:\+(?:cu|rocm|cpu)[\d.]{0,6})?"
)
# What a copy calls unknown words and kernels: known in a copy, and in no other report.
_COPIED_WORD, _COPIED_KERNEL = (
    re.compile(rf"{COPIED_WORD}(?:num[0-9]+)?", re.IGNORECASE),
    re.compile(r"_name_[0-9]"),
)
# Numbers that stand for longer ones; they are indices to the analysis, as those are.
_FIRST_NUMBER, _MOST_NUMBERS = 900_001, 99_999
_INDEX = re.compile(r"(?<![A-Za-z0-9])(?:\d+|\*)(?![A-Za-z0-9])")
# Ends a text that is numbered as a whole, and no word.
WHOLE = "\0"
# A longer name is replaced as a whole: to look through it would take long.
LONGEST, LONGEST_CACHED = 1 << 16, 1 << 10

# What records reports, and what they hold.
RECORDERS = ("nsys", "nvtx-kernels recorder", "PyTorch profiler", "rocprofv3", "GPU", "CPU")
# Times in a sentence; a number of such a form in a name may be a part of an address.
_TIMES = re.compile(r"((?<![\w.])\d{1,6}\.\d{1,3}(?![\w.])|µs)")
# A Python function: its folder, unless that is of an installed library, its file and line, and its name.
_FUNCTION = re.compile(
    r"(?:.*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/)?(?P<file>.+?)(?P<line>\(\d{1,9}\)): (?P<name>.+)",
    re.DOTALL,
)


class Names:
    """Chooses the replacement for a text, by what the text is.

    `own_words` are the words of the report's environment, which are not kept; `keep` are patterns of whole names,
    which are. With `of_copy`, the words that copies have for unknown ones are known.
    """

    def __init__(
        self, *, own_words: Collection[str] = (), keep: Sequence[str] = (), of_copy: bool = False
    ) -> None:
        self.own = frozenset(own_words)
        self.of_copy = of_copy
        self._own_tokens = [word for word in self.own if not WORD.fullmatch(word)]  # of several words, as in x0r
        self.kept = [re.compile(translate(pattern), re.DOTALL) for pattern in keep]
        self.numbers: dict[str, int] = {}  # of unknown words, with a star for each number in them
        self.numbers_in: dict[str, dict[str, int]] = {}  # by these, of the words that differ in numbers
        self.long_numbers: dict[str, int] = {}
        self._cached_range = lru_cache(CACHED_NAMES)(self._range)
        self.rules: dict[Role, Callable[[str], str]] = {
            Role.KERNEL: self.kernel,
            Role.COPY: lambda text: self.in_words(text, hide_own=False),
            Role.RANGE: self.range,
            Role.MODULE: self.module,
            Role.PATH: self.path,
            Role.DOMAIN: lambda text: text if is_library_domain(text) or text == DOMAIN else self.range(text),
            Role.THREAD: thread_name,
            Role.FRAME: self.frame,
            Role.FILE: self.file,
            Role.WORDS: self.in_words,
            Role.NOTE: self.note,
            Role.FACT: self.fact,
            Role.GPU: self.gpu,
        }

    @property
    def replaced(self) -> int:
        """How many different words were replaced."""
        differing = sum(map(len, self.numbers_in.values())) - len(self.numbers_in)
        return len(self.numbers) + differing + len(self.long_numbers)

    def shared(self, role: Role, text: str) -> str:
        """Return the shareable part of a text; an empty one stays, for it is a name that hides another."""
        return text if not text or any(pattern.match(text) for pattern in self.kept) else self.rules[role](text)

    def expect(self, uses: Iterable[tuple[Role, str]]) -> None:
        """Classify texts that are about to be replaced, and their replacements: one at a time that takes long."""
        texts = dict.fromkeys(uses)
        kernels = {text for role, text in texts if role is Role.KERNEL}
        bare = (text.removeprefix(ENGINE_OPERATOR) for role, text in texts if role in (Role.RANGE, Role.DOMAIN))
        names = [*kernels, *(name for name in bare if is_operator(name) and len(name) <= LONGEST)]
        new = [name for name in dict.fromkeys(names) if of_any_number(name) not in CLASSIFIED]
        if not new:
            return
        unnumbered = _Unnumbered(own_words=self.own, of_copy=self.of_copy)
        generated = [name for name in new if name in kernels and len(name) <= LONGEST and compiled_parts(name)]
        CLASSIFIED.learn([*new, *map(unnumbered.in_words, generated)])
        left = [(name, unnumbered.range_candidates(name)) for name in new if name not in kernels]
        while left:
            tried = [(name, pair[1], others) for name, others in left if (pair := next(others, None))]
            CLASSIFIED.learn(like for _, like, _ in tried if is_operator(like))
            left = [(name, others) for name, like, others in tried if meaning(like) != meaning(name)]

    def is_known(self, text: str, *, hide_own: bool = True) -> bool:
        """Return whether every word of a text is public."""
        return len(text) <= LONGEST and next(self._unknown(text, hide_own=hide_own), None) is None

    def in_words(self, text: str, *, hide_own: bool = True) -> str:
        """Replace every unknown word of a text by a numbered one, the report's own words only if `hide_own`."""
        parts = []
        position = 0
        for begin, end in self._unknown(text, hide_own=hide_own):
            word = text[begin:end]
            is_number = word.isascii() and word.isdigit()
            parts += [text[position:begin], self._number(word) if is_number else self._numbered(word)]
            position = end
        return "".join([*parts, text[position:]])

    def _unknown(self, text: str, *, hide_own: bool) -> Iterator[tuple[int, int]]:
        """Yield where the unknown words of a text begin and end: whole tokens, or words of camel case in them."""
        joined = [match.span() for match in JOINED.finditer(text)]
        for match in TOKEN.finditer(text):
            token = match[0]
            (begin, end) = match.span()
            if token.startswith(PUNCTUATION):
                continue
            is_joined = any(first <= begin < last for first, last in joined)
            if is_joined or (token.isascii() and token.isdigit()):
                if not self._is_index(token, is_joined=is_joined, hide_own=hide_own):
                    yield begin, end
                continue
            bare = letters(token)
            digits = token[len(bare) :]
            is_known_word = bare and digits and WORD.fullmatch(token) and self._is_word(bare, hide_own)
            if is_known_word:
                if not self._is_index(digits, is_joined=False, hide_own=hide_own):
                    yield begin + len(bare), end
                    continue
                if int(digits) >= _FIRST_NUMBER:  # a copy's, as in afc900005, which looks like hex
                    continue
            unknown = [word.span() for word in WORD.finditer(token) if not self._is_word(word[0], hide_own)]
            is_own = hide_own and not self.own.isdisjoint({token.lower(), *map(letters, WORD.findall(token))})
            if token.lower() in words() and not is_own:
                continue
            if not is_plain(token) or (hide_own and any(word in token.lower() for word in self._own_tokens)):
                yield begin, end
            else:
                yield from ((begin + first, begin + last) for first, last in unknown)

    def _is_index(self, token: str, *, is_joined: bool, hide_own: bool) -> bool:
        """Return whether a number is a small one that is part of nothing, or stands for another in a copy."""
        if (
            not (token.isascii() and token.isdigit())
            or len(token) > MOST_DIGITS
            or (hide_own and token in self.own)
        ):
            return False
        return self.of_copy if int(token) >= _FIRST_NUMBER else not is_joined

    def _is_word(self, word: str, hide_own: bool) -> bool:
        bare = letters(word)
        if hide_own and (bare in self.own or word.lower() in self.own):
            return False
        if _COPIED_WORD.fullmatch(word):
            return self.of_copy
        return len(bare) <= 1 or bare in words()

    def _numbered(self, token: str) -> str:
        """Return the word for an unknown one, in lower case, upper case or capitalized as that is."""
        is_word = bool(WORD.fullmatch(token)) and len(token) <= LONGEST
        text = token.lower() if is_word else token
        kind = without_numbers(text)
        number = f"name{self._number_of(kind)}"
        if kind != text:  # so that words which differ by numbers still do
            number += f"num{self._number_in(kind, text)}"
        if not is_word or token == token.lower():
            return number
        return number.upper() if token == token.upper() and len(letters(token)) > 1 else number.capitalize()

    def _whole(self, text: str) -> str:
        """Return the word for a text that is replaced as a whole."""
        return f"name{self._number_of(text + WHOLE)}"

    def _number_in(self, kind: str, text: str) -> int:
        of_kind = self.numbers_in.setdefault(kind, {})
        return of_kind.setdefault(text, len(of_kind) + 1)

    def _number_of(self, word: str) -> int:
        return self.numbers.setdefault(word, len(self.numbers) + 1)

    def _number(self, digits: str) -> str:
        """Return the number for one that is too long, or part of an address."""
        number = self.long_numbers.setdefault(digits, len(self.long_numbers))
        return str(_FIRST_NUMBER + number) if number < _MOST_NUMBERS else self._numbered(digits)

    def range(self, name: str) -> str:
        """Return the name of a range: known words, and those that its meaning needs."""
        return (self._cached_range if len(name) <= LONGEST_CACHED else self._range)(name)

    def _range(self, name: str) -> str:
        if name.startswith(ENGINE_OPERATOR):
            return ENGINE_OPERATOR + self.range(name.removeprefix(ENGINE_OPERATOR))
        if any(pattern.match(name) for pattern in self.kept):
            return name
        candidates = self.range_candidates(name)
        first = next(candidates)
        same = (new for new, like in chain([first], candidates) if meaning(like) == meaning(name))
        return next(same, first[0])

    def range_candidates(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield candidates for a name's place, and for each a name of the same meaning.

        These are its public words, those that its meaning needs, and names with a number, which decides nothing.
        """
        if len(name) <= LONGEST:
            words = self.in_words(name)
            yield words, words
            if any(pattern.fullmatch(name) for pattern in SERVED):
                yield name, name
            words = self.in_words(name, hide_own=False)
            yield words, words
        else:
            word = f"range {self._numbered(name)}"
            yield word, word
        together = self._numbered(f"{collapsed(name)}\0")
        alone = self._numbered(f"{name}\0")
        indices = [self.in_words(index) for index in _INDEX.findall(name[:LONGEST])]
        category = classified(name)[0]
        of_category = (
            f"{library}{word}_{{}}{node}"
            for library, word, node in product(LIBRARIES, KERNEL_WORDS[category], ("", "Backward0"))
        )
        also = "".join(word for word, means in ALSO.items() if means(name))
        for shape, end in product(chain(RANGE_SHAPES, of_category), dict.fromkeys((also, ""))):
            like = shape.format(f"name1{end}")
            yield " ".join([shape.format(together + end), *indices]), like + " 1" * len(indices)
            yield shape.format(alone + end), like

    def module(self, name: str) -> str:
        """Return an engine's name for a module; equal parts of paths stay equal."""
        if re.fullmatch(r"[0-9.]*", name):  # an address
            return self.in_words(name)
        path, blank, outputs = name.partition(" ")
        return ".".join(map(self.in_words, path.split("."))) + blank + self.in_words(outputs)

    def kernel(self, name: str) -> str:
        """Return the name of a kernel as it is if all its words are known, else one of its category."""
        if self.is_known(name) and (self.of_copy or not _COPIED_KERNEL.search(name)):
            return name
        needed = kernel_meaning(name)
        in_words = self.in_words(name) if compiled_parts(name) and len(name) <= LONGEST else ""
        if in_words and kernel_meaning(in_words) == needed:
            return in_words
        # Which operators it fuses is not in a name of its category.
        return kernel_form(needed[:-1]).format(self._whole(name).replace("name", "name_"))

    def fact(self, text: str) -> str:
        """Return a fact of the recording: what wrote it, and its version."""
        if VERSION.fullmatch(text) or text in RECORDERS:
            return text
        recorder, _, version = text.rpartition(" ")
        if recorder in RECORDERS and VERSION.fullmatch(version):
            return text
        return self.in_words(text)

    def gpu(self, text: str) -> str:
        """Return a GPU's name: one of the table of peaks, or known words."""
        return text if peak_of([text]) else self.in_words(text)

    def note(self, text: str) -> str:
        """Return a sentence in known words, with its times."""
        return "".join(part if _TIMES.fullmatch(part) else self.in_words(part) for part in _TIMES.split(text))

    def path(self, text: str) -> str:
        """Return a path of ranges, or of modules, name by name."""
        if text in ANNOTATED:
            return text
        separator = PATH_SEPARATOR if PATH_SEPARATOR in text else "/"
        return separator.join(map(self.range, text.split(separator)))

    def file(self, path: str) -> str:
        """Return the path of a file in known words; where it lies on a machine is one word."""
        folder, slash, name = path.replace("\\", "/").rpartition("/")
        is_of_machine = folder.startswith(("/", "~")) or ":" in folder or not folder
        folder = self._whole(folder) if is_of_machine and slash else self.in_words(folder)
        return folder + slash + self.in_words(name)

    def frame(self, name: str) -> str:
        """Return the name of a Python function, with another one for what the analysis reads of it."""
        function = _FUNCTION.fullmatch(name)
        if len(name) > LONGEST or not function or name.startswith((MODULE_CALL, "<")):
            return self.in_words(name) if len(name) <= LONGEST else self._numbered(name)
        in_words = f"{self.file(function['file'])}{function['line']}: {self.in_words(function['name'])}"
        needed = frame_meaning(name)
        number = self._whole(name)
        words = product(KERNEL_WORDS[needed[0]], ("", *ALSO))
        imitations = (f"{number}/{word}{also}.py(0): {number}" for word, also in words)
        same = (new for new in chain([in_words], imitations) if frame_meaning(new) == needed)
        return next(same, in_words)


class _Unnumbered(Names):
    """Chooses replacements with 1 for every number: of all that copies have, the category is that of this."""

    def _number_of(self, _word: str) -> int:
        return 1

    def _number_in(self, _kind: str, _text: str) -> int:
        return 1

    def _number(self, _digits: str) -> str:
        return str(_FIRST_NUMBER)


def thread_name(text: str) -> str:
    """Return a thread's names as far as they are made of known words: Linux names threads after programs."""
    return ", ".join(dict.fromkeys(filter(None, map(_thread_name, text.split(", ")))))


def _thread_name(text: str) -> str:
    if PUBLIC_THREADS.fullmatch(text):
        return text
    matches = [match[0] for match in (AUTOGRAD_THREADS.search(text), WORKER_THREADS.search(text)) if match]
    return " ".join(dict.fromkeys(matches))


def with_known_surroundings(trace: Trace) -> Trace:
    """Return the trace with those words alone of its surroundings that are public, and so have to be hidden."""
    return replace(trace, surroundings=frozenset(filter(Names().is_known, own_words(trace))))
