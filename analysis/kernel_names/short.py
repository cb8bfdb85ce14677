"""Kernel names for tables: a readable short form, distinct within a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count, pairwise

from ..support.text import fit, printable
from .parts import compiled_parts, fused_ops, mangled_words, split_name, template_arguments

#: C++ types as they are written in names, by what a table has room for.
_TYPES = {
    written: short
    for short, spellings in {
        "c64": "c10::complex<float> | float2",
        "c128": "c10::complex<double>",
        "bf16": "c10::BFloat16 | __nv_bfloat16 | cutlass::bfloat16_t | nv_bfloat16",
        "f16": "c10::Half | __half | cutlass::half_t",
        "tf32": "cutlass::tfloat32_t",
        "f8e4m3": "c10::Float8_e4m3fn | __nv_fp8_e4m3 | cutlass::float_e4m3_t",
        "f8e5m2": "c10::Float8_e5m2 | __nv_fp8_e5m2 | cutlass::float_e5m2_t",
        "u64": "unsigned long long | unsigned long",
        "u32": "unsigned int",
        "u16": "unsigned short",
        "u8": "unsigned char",
        "i8": "signed char",
        "i64": "long long | long",
        "f64": "double",
        "f32": "float",
        "i16": "short",
        "bool": "bool",
        "i32": "int",
    }.items()
    for written in spellings.split(" | ")
}
_TYPE = re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(_TYPES, key=len, reverse=True))) + r")(?![\w:])")
_FLAG = re.compile(r"\(bool\)[01]\b")
_CAST = re.compile(r"\([\w: ]+\)(?=-?\d)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_LAMBDA = re.compile(r"lambda\(([^()]+)\)")
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?l*>")

#: Words of a template argument that name no operation: namespaces, types and what wraps the functor.
_WRAPPER_WORDS = """
    void at native std cuda cub c10 detail internal templates const operator unsigned signed char bool
    short int long float double Half BFloat16 complex thrust gpu_kernel_impl gpu_kernel_impl_nocast
    gpu_index_kernel AUnaryFunctor BUnaryFunctor BinaryFunctor binary_internal ReduceOp func_wrapper_t
    ReductionOp OpaqueType lambda instance _cuda_scatter_gather_internal_kernel TensorListMetadata
    TensorListScalarListMetadata FusedOptimizerTensorListMetadata TensorIterator TensorIteratorBase
    Scalar cutlass gemm kernel device flash fmha cute tuple true false
    collective
"""
_WRAPPERS = frozenset(_WRAPPER_WORDS.split())
_ENDINGS = re.compile(
    r"_?(?:CUDAKernelImpl|KernelImpl|_kernel_cuda|_kernel_impl|_cuda_kernel|_kernel|_cuda_out|_cuda|_functor|Functor|Ops)$"
)
_BEGINNINGS = re.compile(r"^(?:CUDAFunctorOnSelf_|CUDAFunctor_|launch_)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _operation(word: str) -> str:
    """Return the operation that a functor's name names: `MulFunctor` and `mul_kernel_cuda` are mul."""
    return _HUMP.sub("_", _ENDINGS.sub("", _BEGINNINGS.sub("", word)) or word).lower()


def _type_of(arguments: str) -> str:
    """Return the short type that the first functor in `arguments` works on; nothing where none is named."""
    lambdas = _LAMBDA.search(arguments)
    first = _TYPE.search(arguments)
    if lambdas and (not first or lambdas.start() < first.start()):
        types = [_TYPES[name] for name in _TYPE.findall(lambdas[1])]
        return next((kind for kind in types if kind != "bool"), "".join(types[:1]))
    return _TYPES[first[0]] if first else ""


#: Types as operators' table names them, by the short form here; of opaque ones, any of their size.
_NUMBERS = {"f64": "fp64", "f32": "fp32", "bf16": "bf16", "f16": "fp16", "c64": "complex64", "i64": "int64"}
_OF_SIZE = {"1": "uint8", "2": "bf16", "4": "fp32", "8": "int64", "16": "complex128"}


def number_type(kernel: str) -> str:
    """Return the type of the numbers that a kernel of PyTorch's works on, as its name tells; else "".

    >>> number_type("void multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float, 1, 1, 0>>")
    'fp32'
    """
    arguments = split_name(kernel)[1]
    opaque = _OPAQUE.search(arguments)
    return _OF_SIZE.get(opaque[1], "") if opaque else _NUMBERS.get(_type_of(arguments), "")


#: Beginnings of names that are one word of a library, with the parts that a short name keeps.
_NUMBER_TYPE = r"(tf32|bf16|f16|f32|f64|c64|e4m3|e5m2|i8)"
_XMMA = (
    re.compile(rf"(sm\d+_xmma_\w*?gemm)_{_NUMBER_TYPE}\w*?_([ntc]{{2}})_\w_tilesize([\dx]+)(?:_(stage\d+))?"),
    re.compile(
        rf"(sm\d+_xmma_[fdw](?:prop|grad))_\w*?gemm(?:_indexed)?_{_NUMBER_TYPE}\w*?_(n[hc]\w*?_n[hc]\w\w)"
        r"_tilesize([\dx]+)(?:_(stage\d+))?"
    ),
)
_CUTLASS = re.compile(r"cutlass(?:3x)?_(?:(?:sm)?\d+_)?(?:simt_)?")
_IS_TILE = re.compile(r"\d+x\d+")

#: How the kernels of PyTorch are written: op and type of the functor, integers of the instance.
_FORMS = (
    (re.compile(r"(?:^|::)_scatter_gather_elementwise_kernel$"), "scatter_gather {op} {bytes}"),
    (re.compile(r"(?:^|::)index_elementwise_kernel$"), "{op} {bytes}"),
    (re.compile(r"(?:^|::)distribution_elementwise_grid_stride_kernel$"), "random {op} {type}"),
    (re.compile(r"(?:^|::)elementwise_kernel_with_index$"), "elementwise {op} {type}"),
    (re.compile(r"(?:^|::)vectorized_\w*elementwise_kernel$"), "elementwise {op} {type} (vec{n[0]})"),
    (re.compile(r"(?:^|::)unrolled_elementwise_kernel$"), "elementwise {op} {type} (unrolled{cast})"),
    (
        re.compile(r"(?:^|::)(?:legacy_)?elementwise_kernel(?:_manual_unroll)?$"),
        "elementwise {op} {type} (strided{cast})",
    ),
    (re.compile(r"(?:^|::)reduce_kernel$"), "reduce {op} {type} ({n[0]}x{n[1]})"),
    (re.compile(r"(?:^|::)multi_tensor_apply_kernel$"), "multi_tensor {ops} {type}"),
    (re.compile(r"(?:^|::)device_kernel$"), "cutlass {op}{tile} {type}"),
    (re.compile(r"(?:^|::)flash_(?:fwd|bwd)_\w*kernel$"), "{name} {type} {n[0]}x{n[1]}x{n[2]}"),
)
_TILE = re.compile(r"tuple<cute::C<(\d{2,})>, cute::C<(\d+)>, cute::C<(\d+)>")
_FUNCTOR = re.compile(r"\b(?:[AB]Unary|Binary)Functor\b|\bCUDAFunctorOnSelf_")
_SCALAR = {
    "AUnaryFunctor": ("scalar ", ""),
    "BUnaryFunctor": ("", " scalar"),
    "CUDAFunctorOnSelf_": ("", " scalar"),
}
_INTEGER = re.compile(r"(?<![\w.])\d+(?=u?l*\b)")
_LAST_WORD = re.compile(r"(?:void )?(?:\w+::)*(\w+)")
_LONGEST_SHORT, _MOST_DETAILS = 100, 9


def short_name(name: str) -> str:
    """Return a readable short form of a demangled kernel name in which different kernels stay different."""
    compiled = compiled_parts(name)
    if compiled:
        return _capped(f"triton {' '.join(fused_ops(name))} ({compiled[0]} {compiled[2]})")
    head, arguments = split_name(name)
    if name.startswith("_Z") and arguments:
        arguments = f"<{', '.join(mangled_words(arguments))}>"
    if not arguments:
        return _capped(_library_word(head) or printable(name))
    arguments = _CAST.sub("", _FLAG.sub("false", arguments))
    form = next((form for pattern, form in _FORMS if pattern.search(head)), None)
    template = ", ".join(template_arguments(arguments))
    return _capped((_filled(form, head, template) if form else _plain(head, arguments)) or printable(name))


def _capped(text: str) -> str:
    return fit(" ".join(text.replace("( ", "(").split()), _LONGEST_SHORT)


def _library_word(word: str) -> str:
    """Write a name that is one word of a library in its parts: `sm80_xmma_gemm f32 tn 128x128x8 stage3`."""
    cutlass = _CUTLASS.match(word)
    if cutlass:
        words = word[cutlass.end() :].split("_")
        tiles = pairwise(_IS_TILE.match(part) for part in ["", *words])
        return "cutlass" + "".join(
            ("_" if a and b else " ") + part for part, (a, b) in zip(words, tiles, strict=True)
        )
    described = next(filter(None, (pattern.match(word) for pattern in _XMMA)), None)
    return described.expand(r"\1 \2 \3 \4 \5") if described else word


def _filled(form: str, head: str, template: str) -> str:
    """Fill `form` with what the template arguments say: the functor's operation and type, integers, tile."""
    words = [
        word for word in _WORD.finditer(template) if word[0] not in _WRAPPERS and not word[0].startswith("enable_")
    ]
    operations = list(dict.fromkeys(_operation(word[0]) for word in words))
    start = words[0].start() if words else 0
    functor = _FUNCTOR.search(template, 0, start + len("CUDAFunctorOnSelf_"))
    before, after = _SCALAR.get(functor[0], ("", "")) if functor else ("", "")
    tile = _TILE.search(template)
    opaque = _OPAQUE.search(template)
    return form.format(
        name=_own_name(head),
        op=before + "".join(operations[:1]) + after,
        ops=" ".join(operations[:2]),
        type=_type_of(template[min(start, functor.start()) if functor else start :]),
        bytes=f"{opaque[1]}B" if opaque else "",
        n=_INTEGER.findall(template)[:3] + ["?"] * 3,
        cast=", cast" if "LoadWithCast" in template or "gpu_kernel_impl<" in template else "",
        tile=f" {'x'.join(tile.groups())}" if tile else "",
    )


def _own_name(head: str) -> str:
    """Return a function's own name: gemvx of `internal::gemvx::kernel`, foo of `ns::foo_kernel`."""
    *outer, last = head.split("::")
    if last == "kernel" and outer:
        return outer[-1]
    return last.removesuffix("_kernel").removesuffix("Kernel") or last


def _plain(head: str, arguments: str) -> str:
    """Write a function's own name and its template arguments: types, integers, names of classes."""
    details = [_detail(argument) for argument in template_arguments(arguments)]
    distinct = [
        detail for index, detail in enumerate(details) if detail.isdigit() or detail not in details[:index]
    ]
    if distinct and distinct[0].startswith("cutlass_"):
        return _library_word(distinct[0])
    return " ".join([_own_name(head), *filter(None, distinct)][:_MOST_DETAILS])


def _detail(argument: str) -> str:
    """Return the short form of a template argument, or "" for flags and tuning policies."""
    if argument in ("true", "false") or argument in _TYPES:
        return _TYPES.get(argument, "")
    if opaque := _OPAQUE.search(argument):
        return f"{opaque[1]}B"
    if integer := _INTEGER.match(argument):
        return integer[0]
    word = _LAST_WORD.match(argument)
    return word[1] if word and "olicy" not in argument else ""


def names_by_kernel(kernels: Iterable[str], full: bool = False) -> dict[str, str]:
    """Return each kernel's name in a table: short and distinct among these, or with `full` unchanged."""
    distinct = list(dict.fromkeys(kernels))
    return dict(zip(distinct, distinct if full else distinct_short_names(distinct), strict=True))


def distinct_short_names(names: Sequence[str]) -> list[str]:
    """Return a short name per name; equal ones are numbered #1, #2 in the order of the full names."""
    full = sorted(set(names))
    short = {name: short_name(name) for name in full}
    shared = Counter(short.values())
    taken = {text for text, count in shared.items() if count == 1}
    for name in full:
        if shared[short[name]] > 1:
            short[name] = next(text for number in count(1) if (text := f"{short[name]} #{number}") not in taken)
            taken.add(short[name])
    return [short[name] for name in names]
