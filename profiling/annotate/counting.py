"""FLOPs and least bytes of one step, by the ranges that are open while it computes them.

    with Counting().step() as counting:     # on the thread that trains
        train_step()
    counting.send()                         # into the report, as marks

A step is counted while PyTorch runs it, in a dispatch mode: every operator below autograd, in backward, in
recomputation and in an optimizer too. The mode calls each operator as it is, so results do not change. In compiled
code it sees the operators that Inductor calls, and not Inductor's own kernels.

In a report the counts are NVTX marks in our domain, `MARK` followed by a JSON object:

    nvtx-kernels flops: {"version": 1, "part": 0, "parts": 1, "calls": {"forward > GPT2": 1},
                         "ranges": {"backward": {"step > backward > GPT2 > layer *": [12, 4096, {"bf16": 8192}]}},
                         "uncounted": {"aten.gelu": [12, 65536]}}

`ranges` has, by phase and path (`*` stands for an index), the number of ranges, and the bytes and FLOPs by
arithmetic of each outside of inner ranges. `elementwise` FLOPs are counted apart (operator_cost.py). `uncounted`
has the operators without a formula that move the most bytes: how often they ran, and their bytes. `calls` counts
the counted step's calls of models. `peaks` has the results of `nvtx-kernels doctor --peaks` for the GPU, if
they exist: reports are compared with what their GPU can do, not with its data sheet. A file in the user's cache
folder keeps them by GPU: `{"tflops": {"bf16": 812.3, …}, "gigabytes_per_s": 4100.0}`.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from nvtx_kernels.analysis.support.files import replace_file
from nvtx_kernels.analysis.support.user_cache import content_of, folder, is_ours_alone
from nvtx_kernels.analysis.vocabulary import (
    BACKWARD,
    ELEMENTWISE,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PATH_SEPARATOR,
    is_library_domain,
    is_step,
)
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from nvtx_kernels import DOMAIN

from ..harmless import forgive, json_text, say_once
from . import operator_cost, optimizers, others, range_stack
from .compiled.ranges import in_compiled_function
from .given import is_traced
from .marks import collapsed
from .range_stack import OpenRange, Payload, Thread
from .regions import in_backward

MARK = "nvtx-kernels flops: "
VERSION = 1
# nsys keeps long messages, but how long is not documented; a mark has at most this many paths.
PATHS_PER_MARK = 100
MOST_UNCOUNTED = 12
INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
INDEX_ABOVE = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9]|$)")
PEAKS_FILE, MOST_BYTES = "peaks.json", 2**20
MOST_CALLS = 64
COMPILED = "a step begins inside a compiled function; compile the model instead"
NO_STEP = (
    "{} was called {} times without a step of an optimizer or a range of a step around the calls, so no step "
    "could be counted: open a range, `with annotate.range('step')`, around each"
)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_BLOCKS = "record_function"

Path = tuple[str, ...]


@dataclass(slots=True)
class Figures:
    """What was computed directly in one range: FLOPs by arithmetic, element-wise ones apart, and bytes."""

    flops: Counter[str] = field(default_factory=Counter)
    elementwise: int = 0
    bytes: int = 0

    @property
    def of_mark(self) -> dict[str, int]:
        """All FLOPs, as a mark has them."""
        return {**self.flops, **({ELEMENTWISE: self.elementwise} if self.elementwise else {})}


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator on, and counts it; after the end of a range, where one is given, it counts nothing."""

    supports_higher_order_operators = True

    def __init__(self, counting: Counting, ranges: _Ranges, until: OpenRange | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counting = counting
        self.thread = range_stack.here()
        self.ranges = ranges
        self.until = until
        self.is_on = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code be compiled and run as without this mode."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        if FakeTensor in types or not self.is_on or is_traced() or isinstance(func, HigherOrderOperator):
            out = func(*args, **kwargs)
            return self._counted(func, args, kwargs, out) if isinstance(func, HigherOrderOperator) else out
        if any(kind.__torch_dispatch__ != torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a tensor that is made of others: those come here next
        if _is_composite(func, args, kwargs):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        return self._counted(func, args, kwargs, func(*args, **kwargs))

    def _counted(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        try:
            if self.is_on and not (self.until is not None and self.until.ended):
                self.counting.add(_place(self.thread, self.ranges), func, (args, kwargs, out))
        except Exception:  # an instrument must not break what it measures
            forgive("an operator is not counted")
        return out


def _is_composite(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operator is made of others, which come here if it is taken apart (in inference mode)."""
    name = func.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if not has(name, "CompositeImplicitAutograd"):
        return False
    tensor = next((argument for argument in (*args, *kwargs.values()) if isinstance(argument, torch.Tensor)), None)
    return tensor is not None and not has(name, "CUDA" if tensor.is_cuda else "CPU")


def _place(owner: Thread, heard: _Ranges) -> tuple[str, Path]:
    """Return phase and path of what runs now; autograd's threads work below the ranges of the one that waits."""
    thread = range_stack.here()
    threads = [thread] if thread is owner else [owner, thread]
    ranges = [opened for each in threads for opened in each.ranges]
    path = tuple(name for each in threads for name in heard.path(each))
    if in_backward():
        return BACKWARD, path
    names = {opened.label.name for opened in ranges if opened.label.category == "phase"}
    if any(opened.label.category in range_stack.FORWARD_CATEGORIES for opened in ranges):
        names.add(FORWARD)
    return next((phase for phase in (OPTIMIZER, FORWARD, BACKWARD) if phase in names), OTHER), path


class _Ranges:
    """Listens to ranges of the program and of annotation, which opens them even if no tool records."""

    def __init__(self, calls: Counter[str]) -> None:
        self._calls = calls
        # By thread: domain, how many of annotation's ranges are around it, whether the step began later, name.
        self._own: defaultdict[Thread, list[tuple[str, int, bool, str]]] = defaultdict(list)
        self.is_counting = False

    def push(self, name: str, payload: Payload = None, domain: str = DOMAIN) -> None:  # noqa: ARG002
        """Count a call of a model, or take the start of a range that the program opens without annotation."""
        thread = range_stack.here()
        if domain != DOMAIN:
            self._own[thread].append((domain, len(thread.ranges), not self.is_counting, name))
            return
        are_forward = [opened.label.category in range_stack.FORWARD_CATEGORIES for opened in thread.ranges]
        is_outermost = bool(are_forward) and are_forward[-1] and not any(are_forward[:-1])
        if is_outermost and not in_backward():
            path = PATH_SEPARATOR.join(opened.label.name for opened in thread.ranges)
            self._calls[path] += 1

    def pop(self, domain: str = DOMAIN) -> None:
        """Take the end of the range that began last in a domain on this thread."""
        opened = self._own[range_stack.here()]
        for index in reversed(range(len(opened))):
            domain_of_range, *_ = opened[index]
            if domain_of_range == domain:
                del opened[index]
                return

    def mark(self, message: str) -> None:
        """Handle a mark."""

    def block_began(self, name: str) -> None:
        """Take the start of a record_function block, which a recording has as a range; nsys's report has none."""
        is_left_out = range_stack.has_tool or name.startswith(others.OPTIMIZER_BLOCKS)
        self.push("" if is_left_out else name, domain=_BLOCKS)

    def block_ended(self, *, is_outermost: bool) -> None:  # noqa: ARG002 - a hearer's
        """Take the end of a record_function block."""
        self.pop(_BLOCKS)

    def path(self, thread: Thread) -> list[str]:
        """Return the names of a thread's open ranges, the program's from before the step if one is called so."""
        names = [opened.label.name for opened in thread.ranges]
        of_program = [
            (index, is_earlier, name)
            for domain, index, is_earlier, name in self._own.get(thread, ())
            if name and not is_library_domain(domain)
        ]
        with_earlier = any(is_step(name) for _, _, name in of_program)
        for index, is_earlier, name in reversed(of_program):
            if with_earlier or not is_earlier:
                names.insert(index, name)
        return names


class Counting:
    """Counts one step of this thread, once, and puts the counts into reports.

    `of` is what was counted by phase and path; `calls` counts the calls of models, `uncounted` operators.
    `trouble` says why nothing can be counted, if so.
    """

    def __init__(self) -> None:
        self.of: defaultdict[tuple[str, Path], Figures] = defaultdict(Figures)
        self.calls: Counter[str] = Counter()
        self.uncounted: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._lock = threading.Lock()
        self.is_done, self.trouble = False, ""
        self._mode: _Mode | None = None
        self._ranges = _Ranges(self.calls)
        self._hearing = ExitStack()
        self._texts: list[str] = []

    @property
    def is_running(self) -> bool:
        """Whether the step is being counted."""
        return self._mode is not None

    def listen(self) -> None:
        """Have ranges opened from now on until the step is counted."""
        self._hearing.enter_context(range_stack.listen(self._ranges))
        self._hearing.enter_context(others.hear(self._ranges))

    def begin(self, until: OpenRange | None = None) -> None:
        """Count what this thread computes from here to `end`, or until a range ends."""
        if self.is_done or self._mode is not None:
            return
        if in_compiled_function():  # which ends with the modes that it began with
            self.is_done, self.trouble = True, COMPILED
            return
        self._mode = _Mode(self, self._ranges, until)
        self._ranges.is_counting = True
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def end(self, *, is_step: bool = True) -> None:
        """Stop counting; forget what was counted if it is no step."""
        mode, self._mode = self._mode, None
        self._hearing.close()
        if mode is None:
            return
        mode.is_on, self.is_done = False, True
        if mode.thread is range_stack.here():
            _leave_when_safe(mode)
        self._texts = self.texts() if is_step else []

    @contextmanager
    def step(self) -> Iterator[Self]:
        """Count the block."""
        self.listen()
        self.begin()
        try:
            yield self
        finally:
            self.end()

    @property
    def flops(self) -> int:
        """The sum over all paths."""
        return sum(figures.flops.total() for figures in self.of.values())

    def add(
        self,
        place: tuple[str, Path],
        func: Any,
        call: tuple[Any, Any, Any],
    ) -> None:
        """Take one operator's call: its arguments, its keywords, and what it returned."""
        cost = operator_cost.cost(func, *call)
        flops = cost.flops
        moved = int(cost.bytes or 0)
        if not flops and not moved:
            return
        with self._lock:
            figures = self.of[place]
            figures.bytes += moved
            if flops:
                arguments, _, _ = call
                arithmetic = operator_cost.arithmetic(func, arguments, cost.dtype)
                figures.flops[arithmetic] += flops
            if flops is None:
                figures.elementwise += cost.elementwise
                name = str(getattr(func, "_overloadpacket", None) or getattr(func, "_name", func))
                totals = self.uncounted[name]
                totals[0] += 1
                totals[1] += moved

    def texts(self) -> list[str]:
        """Return the messages of the marks."""
        by_phase: defaultdict[str, dict[str, Figures]] = defaultdict(dict)
        for (phase, path), figures in self.of.items():
            by_phase[phase][PATH_SEPARATOR.join(path)] = figures
        ranges = []
        for phase, paths in by_phase.items():
            # Paths that differ in indices alone are one where their figures are equal.
            comparable = {}
            for joined, figures in paths.items():
                comparable[joined] = (figures.bytes, *sorted(figures.of_mark.items()))
            short = collapsed(comparable, (INDEX, INDEX_ABOVE))
            count = Counter(short.values())
            by_form = {short[path]: figures for path, figures in paths.items()}
            for form, figures in by_form.items():
                entry = [count[form], figures.bytes, figures.of_mark]
                ranges.append((phase, form, entry))
        firsts = range(0, len(ranges), PATHS_PER_MARK)
        parts = [ranges[first : first + PATHS_PER_MARK] for first in firsts] or [[]]
        head = self._head()
        texts = []
        for part_number, part in enumerate(parts):
            of_part: dict[str, dict[str, Any]] = {}
            for phase, form, entry in part:
                of_part.setdefault(phase, {})[form] = entry
            place = {"version": VERSION, "part": part_number, "parts": len(parts)}
            text = json_text({**place, **head, "ranges": of_part})
            texts.append(MARK + text)
            head = {}
        return texts

    def _head(self) -> dict[str, Any]:
        """Return the first mark's additions: the calls, operators without a formula, and the GPU's peaks."""
        by_bytes = sorted(self.uncounted.items(), key=lambda entry: -entry[1][1])
        head: dict[str, Any] = {"calls": self.calls, "uncounted": dict(by_bytes[:MOST_UNCOUNTED])}
        peaks = known_peaks()
        if peaks:
            head["peaks"] = peaks
        return head

    def send(self) -> None:
        """Put the counts into what is recorded now."""
        for text in self._texts:
            range_stack.mark(text)


# What could not be left where it ended, in a compiled function, and does nothing any more.
_inert: list[_Mode] = []


def _leave_when_safe(*modes: _Mode) -> None:
    """Leave modes, unless a compiled function runs: then with the next ones, or by `leave_inert`."""
    _inert.extend(modes)
    if not in_compiled_function():
        while _inert:
            _leave(_inert.pop())


def leave_inert() -> None:
    """Leave the modes that have counted and could not be left where they ended."""
    _leave_when_safe()


def _leave(mode: _Mode) -> None:
    """Leave a mode also where the program has entered others since, which stay."""
    later = []
    stack: Any = _python_dispatch._get_current_dispatch_mode_stack()
    if not any(entered is mode for entered in stack):
        return
    while _python_dispatch._get_current_dispatch_mode() is not mode:
        later.append(_python_dispatch._pop_mode())
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for entered in reversed(later):
        _python_dispatch._push_mode(entered)


class FirstStep(Counting):
    """Counts the first step after `annotate_modules(model, flops=True)`, where nothing says what a step is.

    It begins with the first call of the model. Inside a range of a step that the program itself has opened it ends
    with that range, else with the next step of an optimizer of the model; without gradients, with the next call of
    the model. A loop that steps no optimizer and opens no range of a step is not counted: where its steps end is
    not known.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        self.listen()
        self._model = model
        self._model_calls, self._records = 0, False
        # The program's own range of a step, open on the thread that trains.
        self._step: OpenRange | None = None
        optimizers.on_step.add(self._after_update)

    def before_call(self) -> None:
        """Note that the model is about to be called from outside."""
        if self.is_done:
            return
        if not self.is_running:
            self._step = optimizers.own_range(optimizers.STEP)
            self.begin(until=self._step)
        elif self._step.ended if self._step is not None else not self._records:
            self.end()
        elif self._step is None and self._model_calls >= MOST_CALLS:
            self.end(is_step=False)
            say_once(NO_STEP.format(self._model, self._model_calls))
        self._model_calls += 1
        self._records |= torch.is_grad_enabled()

    def _after_update(self) -> None:
        if self.is_running and self._step is None:
            self.end()

    def end(self, *, is_step: bool = True) -> None:
        """Stop counting, and put what was counted into what is recorded now."""
        optimizers.on_step.discard(self._after_update)
        is_new = self.is_running
        super().end(is_step=is_step)
        if is_new:
            self.send()


def known_peaks() -> dict[str, Any]:
    """Return the measured peaks of the current GPU, or {} without a GPU or measurement."""
    if not torch.cuda.is_available():
        return {}
    measured = _kept_peaks().get(torch.cuda.get_device_name())
    return measured if isinstance(measured, dict) else {}


def keep_peaks(gpu: str, peaks: dict[str, Any]) -> None:
    """Keep what was measured of the GPUs of a name. Raises OSError where the file cannot be kept."""
    if not is_ours_alone(folder()):
        raise OSError(f"others can write to {folder()}")
    replace_file(folder() / PEAKS_FILE, json.dumps({**_kept_peaks(), gpu: peaks}).encode())


def _kept_peaks() -> dict[str, Any]:
    try:
        content = json.loads(content_of(folder() / PEAKS_FILE, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
