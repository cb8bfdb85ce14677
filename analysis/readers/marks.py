"""The marks that this project writes into reports: one typed schema with bounds.

A mark is input like any other, for anybody can push one. Of a field that does not fit, or an entry of one, nothing
is taken; `read_mark` returns which fields those are, so that the reader can say so. A new mark is a class here and
a line in `MARKS`; one that is a `FactMark`, of the moment at which it was pushed, is in `Trace.facts`, with that
moment and the thread.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..vocabulary.lines import REASONS
from ..vocabulary.settings import CHOICES, DIMENSIONS, SETTINGS, Setting

Text: TypeAlias = Annotated[str, Meta(max_length=1024)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
MaybeText: TypeAlias = Text | UnsetType | None
MaybeCount: TypeAlias = Count | UnsetType | None
MaybeFlag: TypeAlias = bool | UnsetType | None
CategoryNumber: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
#: FLOPs and bytes of a step: counted whole, or calculated.
Amount: TypeAlias = Count | Annotated[float, Meta(ge=1, lt=1e24)]
#: TFLOP/s and GB/s that a GPU can reach.
Rate: TypeAlias = Annotated[float, Meta(ge=1e-6, lt=1e6)]
#: What FLOPs are counted by: bf16, tf32, complex64, ….
Arithmetic: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{1,19}\Z")]

Schema = TypeVar("Schema", bound=msgspec.Struct)


class FactMark(msgspec.Struct):
    """A mark that says what happened when it was pushed, and on which thread."""


class TrainingMark(FactMark):
    """What training did: a block of `nk.profile` begins, is measured or ends, a step or an update has ended."""

    event: Literal["begin", "measure", "end", "step", "update"]
    optimizer: Text = ""  # that updated
    backward: Count | None = None  # the run of autograd in which it did
    optimizers: list[Text] = []  # that were given
    warmup: Count = 0
    fewest: Count = 0  # a block of fewer steps has one of warm-up
    steps: Count | None = None
    error: Text = ""  # that ended the block
    by: Text = ""  # who called `step()`, where that was a trainer
    unused: list[Text] = []  # optimizers that never updated, where none did


class CallMark(FactMark):
    """What an outermost call of a model was given, where it does not train: positions of each sequence."""

    positions: Annotated[int, Meta(ge=1, le=2**40)]


#: A time of a step or of a phase, ns, and a phase.
Time: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)] | Annotated[float, Meta(ge=0, le=1e15)]
Phase: TypeAlias = Literal["forward", "backward", "optimizer", "other"]
#: The phases in a step, such as fbA: forward, backward, a call without gradient (n), optimizers A to H.
Shape: TypeAlias = Annotated[str, Meta(pattern=r"^[fbnA-H]{0,1000}\Z")]
MOST_STEPS = 1000


class UnrecordedMark(FactMark):
    """Steps that were timed beside a recording, while nothing listened.

    `span_ns` are times between a phase's two events, `host_ns` those of a step that waits at each boundary,
    `sizes` the number of input values, `allocations` a count and bytes, `dropped` how many steps were left out,
    by reason. They were timed while nothing slowed launches if a profiler was `is_detached`.
    """

    clock: Literal["gpu", "cpu"]
    step_ns: Annotated[list[Time], Meta(min_length=1, max_length=MOST_STEPS)]
    where: Literal["before", "after"]
    is_detached: bool = False
    version: Count = 0
    span_ns: dict[Phase, Annotated[list[Time], Meta(max_length=MOST_STEPS)]] = {}
    host_ns: dict[Phase, Time] = {}
    shape: Shape = ""
    sizes: Count | None = None
    allocations: tuple[Count, Count] | None = None
    dropped: dict[Text, Count] = {}


class RecordedMark(FactMark):
    """The shapes, sizes and allocations of the measured steps, as in `UnrecordedMark`."""

    shapes: Annotated[list[Shape], Meta(max_length=MOST_STEPS)] = []
    sizes: Annotated[list[Count], Meta(max_length=MOST_STEPS)] = []
    allocations: Annotated[list[tuple[Count, Count]], Meta(max_length=MOST_STEPS)] = []


def _type_of(setting: Setting) -> Any:
    of_text = MaybeText | bool if True in setting.choices else MaybeText
    if setting.least is None:
        return of_text
    return MaybeCount


class LoaderFacts(msgspec.Struct):
    """How a data loader of the program was set."""

    num_workers: Count = 0
    pin_memory: bool = False
    persistent_workers: bool = False


#: The facts of a program on its settings, its machine and its model's costs, by type.
_RUN_FACTS: tuple[tuple[Any, str], ...] = (
    *((_type_of(setting), setting.name) for setting in SETTINGS.values()),
    (MaybeCount, "parameters"),
    (MaybeText, "nvtx-kernels python torch cuda"),
    (MaybeCount, "cudnn"),
    (MaybeText, "nvtx device_name"),
    (MaybeCount, "device_memory_bytes multiprocessors"),
    (MaybeText, "capability driver"),
    (MaybeCount, "threads cores"),
    (MaybeFlag, "tf32"),
    (MaybeText, "autocast"),
    (MaybeFlag, "grad_scaler"),
    (MaybeText, "float32_matmul_precision"),
    (MaybeFlag, "cudnn_tf32 cudnn_benchmark optimizer_fused optimizer_foreach optimizer_capturable"),
    (MaybeCount, "parameter_tensors updated_tensors"),
    (dict[Text, Count] | UnsetType, "parameter_dtypes"),
    (MaybeFlag, "anomaly_mode deterministic cudnn_enabled cudnn_deterministic emit_nvtx memory_history"),
    (MaybeFlag, "expandable_segments launch_blocking no_memory_caching no_peer_to_peer saved_tensor_hooks"),
    (MaybeText, "distributed_debug"),
    (MaybeCount, "memory_peak_bytes memory_reserved_bytes memory_retries"),
    (Annotated[list[LoaderFacts], Meta(max_length=64)] | UnsetType, "loaders"),
    (dict[Text, Annotated[list[Count], Meta(max_length=8)]] | UnsetType, "odd_sizes"),
    (Annotated[list[Text], Meta(max_length=64)] | UnsetType, "untrained frozen"),
    (MaybeCount, "positions used_positions"),
    (MaybeText, "watched_by flops_convention"),
    (dict[Text, Amount] | UnsetType, "flops bytes"),
)
RunMark = msgspec.defstruct(
    "RunMark",
    [
        (name.replace("-", "_"), fact, msgspec.field(default=UNSET, name=name))
        for fact, names in _RUN_FACTS
        for name in names.split()
    ],
)


#: What the run's facts that are chosen from a list look like: harmless whatever the program is called.
CHOSEN = {name: "|".join(re.escape(str(choice)) for choice in choices) for name, choices in CHOICES.items()}
CHOSEN |= {
    "size": rf"(?:{CHOSEN['size']})(?:, (?:{'|'.join(setting.name for setting in DIMENSIONS)}) \d{{1,9}})*",
    "device": r"cpu|cuda(?::\d{1,3})?",
    "device_name": r"CPU \((?:x86_64|aarch64|arm64)(?:, (?:DEFAULT|NO AVX|AVX2|AVX512|SVE256))?\)",
    "autocast": r"off|bfloat16|float16",
    "float32_matmul_precision": r"highest|high|medium",
    "watched_by": r"nsys",
    "distributed_debug": r"INFO|DETAIL",
    "reason": "|".join(map(re.escape, REASONS.values())),
    "flops_convention": r"2 per multiply-add; softmax 5 per score forward, 4 backward; scale 1; one step",
}
#: Names of arithmetic, and of types of PyTorch that have none.
ARITHMETIC = re.compile(
    r"(?:tf32|(?:bf|fp|b?float|u?int|complex)\d{1,3}(?:_e\dm\d(?:fn|fnu|fnuz)?)?|bool|elementwise)"
)


class DistributedInfo(msgspec.Struct):
    """A PyTorch trace's facts on its rank and group."""

    backend: MaybeText = UNSET
    rank: MaybeCount = UNSET
    world_size: MaybeCount = UNSET


class ModelMark(msgspec.Struct):
    """Annotation's facts on a model: its modules' classes by their paths of ranges, and its categories.

    `attributes` has PyTorch's names of modules whose ranges have another name; marks before version 3 lack it.
    """

    version: Count = 0
    model: Text = ""
    modules: Count = 0
    classes: dict[Text, Text] = {}
    attributes: dict[Text, Text] | UnsetType = UNSET
    steps: Text = ""  # what the ranges that annotation opened as steps count: "steps of AdamW"
    categories: dict[Text, CategoryNumber] = {}


class Peaks(msgspec.Struct):
    """What was measured of a GPU: TFLOP/s by arithmetic, and GB/s."""

    tflops: Annotated[dict[Arithmetic, Rate], Meta(min_length=1)]
    gigabytes_per_s: Rate


class FlopsMark(msgspec.Struct):
    """What annotation counted in one step of a process; it comes in parts.

    `ranges` has by phase and path how many paths that is, the bytes of each and its FLOPs by arithmetic;
    `uncounted` has by operator how often it ran, and its bytes.
    """

    version: Count = 0
    part: Count = 0
    parts: Count = 0
    calls: dict[Text, Count] = {}
    uncounted: dict[Text, tuple[Count, Count]] = {}
    ranges: dict[
        Text, dict[Text, tuple[Annotated[int, Meta(ge=1, le=2**31)], Count, dict[Arithmetic, Count]]]
    ] = {}
    peaks: Peaks | None = None


#: A line of a program: its file, its number and its function.
Frame: TypeAlias = tuple[Text, Annotated[int, Meta(ge=0, le=2**31)], Text]
MOST_LINES = 200_000
MOST_FRAMES = 16
#: A moment, ns from that of its mark.
Moment: TypeAlias = Annotated[int, Meta(ge=-(2**62), le=2**62)]


class LinesMark(msgspec.Struct):
    """The lines of one step, which was traced: see line_marks.py of the recorder."""

    version: Count = 0
    reason: Text = ""
    frames: Annotated[list[Frame], Meta(max_length=MOST_LINES)] = []
    stacks: Annotated[
        list[Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MOST_FRAMES)]],
        Meta(max_length=MOST_LINES),
    ] = []
    begun: Annotated[list[Moment], Meta(max_length=MOST_LINES)] = []
    span: tuple[Moment, Moment] = (0, 0)
    data: str = ""


class MemoryMark(msgspec.Struct):
    """A part of the allocator's events, and the program's clock: see allocation_marks.py of the recorder."""

    now_ns: Count
    part: Annotated[int, Meta(ge=0, lt=100_000)]
    parts: Annotated[int, Meta(ge=0, lt=100_000)]
    data: str = ""


#: The message of each mark begins so.
MARKS: dict[str, type[msgspec.Struct]] = {
    "nvtx-kernels.run ": RunMark,
    "nvtx-kernels annotation: ": ModelMark,
    "nvtx-kernels flops: ": FlopsMark,
    "nvtx-kernels memory: ": MemoryMark,
    "nvtx-kernels lines: ": LinesMark,
    "nvtx-kernels training: ": TrainingMark,
    "nvtx-kernels call: ": CallMark,
    "nvtx-kernels unrecorded: ": UnrecordedMark,
    "nvtx-kernels recorded: ": RecordedMark,
}
(
    RUN_MARK,
    MODEL_MARK,
    FLOPS_MARK,
    MEMORY_MARK,
    LINES_MARK,
    TRAINING_MARK,
    CALL_MARK,
    UNRECORDED_MARK,
    RECORDED_MARK,
) = MARKS


@lru_cache(maxsize=64)  # annotation sends the same mark ten times a second
def read_mark(text: str) -> tuple[msgspec.Struct | None, list[str]]:
    """Return a mark's content, None for other marks, and the fields of our marks that do not fit their schema."""
    for prefix, schema in MARKS.items():
        if text.startswith(prefix):
            mark, unfit = decoded(schema, text.removeprefix(prefix))
            return mark, [f"{field} of {prefix.rstrip(': ')}" for field in unfit]
    return None, []


def decoded(schema: type[Schema], text: str) -> tuple[Schema | None, list[str]]:
    """Return the part of a JSON object that fits a schema, or None, and the names of fields that do not fit."""
    try:
        return msgspec.json.decode(text, type=schema), []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return fitting(schema, parsed(text))


def parsed(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a mark; None for anything else."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def fitting(schema: type[Schema], content: object) -> tuple[Schema | None, list[str]]:
    """Return the part of an object that fits a schema, or None, and the names of fields that do not fit."""
    if not isinstance(content, dict):
        return None, ["all"]
    fields: dict[str, Any] = {}
    unfit = []
    hints = get_type_hints(schema, include_extras=True)
    for field in msgspec.structs.fields(schema):
        name = field.encode_name
        if name in content:
            fields[name], fits = _fit(hints[field.name], content[name])
            unfit += [] if fits else [name]
    try:
        return msgspec.convert({name: part for name, part in fields.items() if part is not UNSET}, schema), unfit
    except msgspec.ValidationError:  # it lacks what it needs
        return None, unfit or ["all"]


def _fit(hint: Any, content: object) -> tuple[Any, bool]:
    """Return the fitting part of a value, and whether all fits: a table's fitting entries, else all or UNSET."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    table = next((option for option in options if get_origin(option) is dict), None)
    if table is None or not isinstance(content, dict):
        try:
            msgspec.convert(content, hint)
        except msgspec.ValidationError:
            return UNSET, False
        return content, True
    key_hint, entry_hint = get_args(table)
    entries = {}
    fit_all = True
    for key, entry in content.items():
        (_, key_fits) = _fit(key_hint, key)
        (part, fits) = _fit(entry_hint, entry)
        fit_all &= key_fits and fits
        if key_fits and part is not UNSET:
            entries[key] = part
    return entries, fit_all
