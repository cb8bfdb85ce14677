"""What each lever does to a running program; `levers` lists them."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..tf32 import convolutions_take_tf32, products_take_tf32
from .patch import NOTHING, OURS, Call, OfCalls, OfRoots, OfSetting, Patch, caller_of, mapped, place_of, replace

Options = dict[str, Any]
#: With the collector off, younger objects are collected once in this many steps.
STEPS_UNCOLLECTED = 100
#: In the paths of files of functorch and of the compiler.
OF_COMPILERS = ("_functorch", "_dynamo", "_inductor")
#: Options of `checkpoint` that are not its function's.
OF_CHECKPOINT = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
#: A batch of images: dimensions of batch, channels, height and width.
IMAGES = 4


def is_fp32(module: nn.Module) -> bool:
    """Return whether a model computes in fp32 here: its first weight is, and autocast is off."""
    floating = (weight for weight in module.parameters() if weight.is_floating_point())
    first = next(floating, None)
    if first is None or first.dtype != torch.float32:
        return False
    return not torch.is_autocast_enabled(first.device.type)


def is_on_gpu(module: nn.Module) -> bool:
    """Return whether a model's weights are on a GPU."""
    return any(weight.is_cuda for weight in module.parameters())


class WithoutCalls(OfCalls):
    """The program's calls of a function do nothing, and return `result`."""

    def __init__(self, *functions: tuple[Any, str], result: Any = None) -> None:
        super().__init__(*functions)
        self.result = result
        self.spent_s = 0.0

    def called(self, call: Call) -> Any:
        """Return at once, or time the call."""
        if self.changes(call.frame):
            return self.result
        began_s = time.perf_counter()
        try:
            return call.make()
        finally:
            self.spent_s = (self.spent_s or 0.0) + time.perf_counter() - began_s


class WithOptions(OfCalls):
    """The program's calls of a function get other options where `applies` says so of those that they have."""

    def __init__(
        self,
        *functions: tuple[Any, str],
        value: Mapping[str, Any],
        applies: Callable[[Options], bool],
    ) -> None:
        super().__init__(*functions)
        self.value = value
        self.applies = applies

    def called(self, call: Call) -> Any:
        """Call with the other options."""
        if self.applies(call.options) and self.changes(call.frame):
            call.options |= self.value
        return call.make()


class ZeroGrad(OfCalls):
    """Gradients are set to None in place of zero."""

    def called(self, call: Call) -> Any:
        """Call as without `set_to_none=False`."""
        keeps = call.options.get("set_to_none") is False or call.arguments[1:2] == (False,)
        if keeps and self.changes(call.frame):
            return call.function(call.arguments[0], set_to_none=True)
        return call.make()


class WithoutCheckpoints(OfCalls):
    """Checkpointed functions are called, and keep what their backward needs."""

    leaves_alone = OURS  # `checkpoint_sequential` is PyTorch's

    def called(self, call: Call) -> Any:
        """Call the function itself."""
        if not self.changes(call.frame):
            return call.make()
        function, *inputs = call.arguments
        options = {name: value for name, value in call.options.items() if name not in OF_CHECKPOINT}
        return function(*inputs, **options)


class Anomaly(Patch):
    """Autograd's detection of anomalies is off, where the program has switched it on."""

    def install(self) -> None:
        """Replace what all ways to switch it on call."""
        self.asked = False
        self.checks_nan = True
        self.set_for_real = torch.set_anomaly_enabled

        def replacement(set_for_real: Callable[[bool, bool], None]) -> Callable[..., None]:
            def set_enabled(mode: bool, check_nan: bool = True) -> None:
                # Called by `detect_anomaly`; by functorch and the compiler for their own ends.
                frame = caller_of(sys._getframe(1))
                file = frame.f_code.co_filename
                if any(part in file for part in OF_COMPILERS):
                    set_for_real(mode, check_nan)
                    return
                self.asked = mode
                self.checks_nan = check_nan
                is_off = mode and self.changes(frame)
                set_for_real(mode and not is_off, check_nan)

            return set_enabled

        replace(torch, "set_anomaly_enabled", replacement)

    def switched(self) -> None:
        """Switch off what the program has switched on, or on again."""
        if self.asked:
            self.did += self.is_active
            self.set_for_real(not self.is_active, self.checks_nan)


class OfGroups(Patch):
    """Optimizers of some classes get other flags in all their groups, where `is_suited` says so of each."""

    def __init__(
        self,
        classes: str,
        flags: Mapping[str, Any],
        is_suited: Callable[[Mapping[str, Any]], bool],
    ) -> None:
        super().__init__()
        self.classes = classes.split()
        self.flags = flags
        self.is_suited = is_suited
        self.made_at: dict[int, str] = {}
        self.before: dict[int, tuple[Optimizer, list[Options]]] = {}
        self.unsuited: set[int] = set()

    def install(self) -> None:
        """Hear of optimizers where they are made, and before each step."""

        def with_place(original: Callable[..., None]) -> Callable[..., None]:
            def initialize(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
                self.made_at[id(optimizer)] = place_of(sys._getframe(1))
                original(optimizer, *arguments, **options)

            return initialize

        replace(Optimizer, "__init__", with_place)
        register_optimizer_step_pre_hook(self.before_step)

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Take an optimizer that can be changed, and count its steps with the flags."""
        number = id(optimizer)
        groups = optimizer.param_groups
        if number in self.unsuited:
            return
        if number not in self.before:
            is_known = type(optimizer).__name__ in self.classes
            if not is_known or not all(self.is_suited(group) for group in groups):
                self.unsuited.add(number)
                return
            self.saw += 1
            self.place = self.place or self.made_at.get(number, "")
            self.before[number] = optimizer, [self._flags_of(group) for group in groups]
            if self.is_active:
                self._set(optimizer, [self.flags] * len(groups))
        if self.is_active:
            are_set = all(self._flags_of(group) == self.flags for group in groups)
            self.did += are_set
            self.trouble = "" if are_set else "the program sets it back (load_state_dict?)"

    def _flags_of(self, group: Options) -> Options:
        return {name: group.get(name) for name in self.flags}

    def switched(self) -> None:
        """Set the flags, or those of before."""
        for optimizer, before in self.before.values():
            self._set(optimizer, [self.flags] * len(before) if self.is_active else before)

    def _set(self, optimizer: Optimizer, flags: list[Any]) -> None:
        for group, of_group in zip(optimizer.param_groups, flags, strict=False):
            group.update(of_group)


class Fused(OfGroups):
    """The fused kernels of an optimizer, which want the count of steps where the weights are."""

    def _set(self, optimizer: Optimizer, flags: list[Any]) -> None:
        super()._set(optimizer, flags)
        optimizer._step_supports_amp_scaling = self.is_active  # type: ignore[attr-defined]
        for weight, state in optimizer.state.items():
            step = state.get("step")
            if isinstance(step, torch.Tensor):
                state["step"] = step.to(weight.device if self.is_active else "cpu")


def may_be_fused(group: Mapping[str, Any]) -> bool:
    """Return whether the fused kernels could, and do not, update the weights of a group."""
    if any(group.get(flag) for flag in ("fused", "capturable", "differentiable")):
        return False
    weights = group["params"]
    are_on_known_devices = all(weight.device.type in ("cpu", "cuda") for weight in weights)
    return are_on_known_devices and all(weight.is_floating_point() for weight in weights)


class Compiled(OfRoots):
    """Models are compiled in place; of what makes no graph, nothing is compiled."""

    def __init__(self, mode: str | None = None) -> None:
        super().__init__()
        self.mode = mode
        self.compiled: dict[int, Any] = {}
        self.graphs = 0
        self.graphs_before = 0

    def wanted(self, module: nn.Module) -> bool:
        """Return whether a model is not compiled yet."""
        is_compiled = module._compiled_call_impl is not None or "_orig_mod" in module._modules
        return not is_compiled

    def change(self, module: nn.Module) -> None:
        """Have calls go to compiled code, or to the model's own."""
        number = id(module)
        if self.is_active and number not in self.compiled:
            self.compiled[number] = torch.compile(module._call_impl, mode=self.mode)
        module._compiled_call_impl = self.compiled[number] if self.is_active else None

    def switched(self) -> None:
        """Count the graphs made while it was on."""
        super().switched()
        if self.is_active:
            self.graphs_before = _graphs()
            return
        self.graphs += _graphs() - self.graphs_before
        if self.did and not self.graphs:
            self.did, self.trouble = 0, "the compiler made no graph"


def _graphs() -> int:
    """Return how many graphs the compiler has made."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    return int(dynamo.counters["stats"]["unique_graphs"])


class Sdpa(OfRoots):
    """Attention of Hugging Face's models by scaled_dot_product_attention."""

    def wanted(self, module: nn.Module) -> bool:
        """Return whether a model, or one in it, computes attention step by step."""
        return any(_has_eager_attention(part) for part in module.modules())

    def change(self, module: nn.Module) -> None:
        """Choose the kind of attention."""
        kind = "sdpa" if self.is_active else "eager"
        parts = (part for part in module.modules() if hasattr(part, "set_attn_implementation"))
        outermost: Any = next(parts)
        outermost.set_attn_implementation(kind)


def _has_eager_attention(module: nn.Module) -> bool:
    config = getattr(module, "config", None)
    is_eager = getattr(config, "_attn_implementation", "") == "eager"
    return is_eager and hasattr(module, "set_attn_implementation")


class Bf16(Patch):
    """Models that compute in fp32 run under autocast, and return fp32."""

    def around(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Cast the calls of models in fp32."""
        if not is_fp32(module) or not self.changes():
            return NOTHING
        first = next(module.parameters())
        return torch.autocast(first.device.type, torch.bfloat16)

    def output(self, returned: Any) -> Any:
        """Return fp32."""
        return mapped(returned, _from_bf16) if self.is_active else returned


def _from_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class Float32(OfRoots):
    """Models in float64, and what they are called with, become float32; there is no way back."""

    def wanted(self, module: nn.Module) -> bool:
        """Return whether a model has weights in float64."""
        return any(weight.dtype == torch.float64 for weight in module.parameters())

    def change(self, module: nn.Module) -> None:
        """Cast the weights."""
        if self.is_active:
            module.float()

    def inputs(self, inputs: Any) -> Any:
        """Return float32."""
        return mapped(inputs, _from_float64) if self.is_active else inputs


class ChannelsLast(OfRoots):
    """The weights of models with Conv2d, and what they are called with, lie in memory with channels last.

    Optimizers make their states in the weights' layout, in their first step, so there is no way back.
    """

    def wanted(self, module: nn.Module) -> bool:
        """Return whether a model has images' convolutions whose weights are not so yet."""
        weights = [part.weight for part in module.modules() if isinstance(part, nn.Conv2d)]
        made = [weight for weight in weights if not is_lazy(weight)]
        return any(not weight.is_contiguous(memory_format=torch.channels_last) for weight in made)

    def change(self, module: nn.Module) -> None:
        """Lay out the weights."""
        if self.is_active:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def inputs(self, inputs: Any) -> Any:
        """Return images in that layout."""
        return mapped(inputs, _channels_last) if self.is_active else inputs


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == IMAGES else tensor


def _from_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


class ReadLate(OfCalls):
    """A number read from the GPU is the one read at this place a step before: what not to wait would save."""

    def __init__(self) -> None:
        super().__init__((torch.Tensor, "item"), (torch.Tensor, "__float__"))
        self.reads: Counter[tuple[str, int]] = Counter()
        self.earlier: dict[tuple[str, int, int], tuple[torch.Tensor, torch.cuda.Event]] = {}

    def called(self, call: Call) -> Any:
        """Begin to read this number, and return the one of the step before."""
        tensor = call.arguments[0]
        if not tensor.is_cuda or tensor.numel() != 1 or not self.changes(call.frame):
            return call.make()
        line = call.frame.f_code.co_filename, call.frame.f_lineno
        key = (*line, self.reads[line])  # the first read at this line in the step, the second, …
        self.reads[line] += 1
        number = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        number.copy_(tensor.detach().reshape(()), non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        earlier = self.earlier.get(key)
        self.earlier[key] = number, event
        if earlier is None:
            return call.make()
        earlier_number, earlier_event = earlier
        earlier_event.synchronize()
        return call.function(earlier_number)

    def step_ended(self) -> None:
        """Count a step's reads anew."""
        self.reads.clear()


class WithoutCollector(Patch):
    """What lives after warm-up is out of the garbage collector's sight, which then runs once in many steps."""

    waits_for_warm_up = True

    def install(self) -> None:
        """Hear of collections."""
        self.spent_s = 0.0
        self.began_s = 0.0
        self.steps = 0
        gc.callbacks.append(self.heard)

    def heard(self, phase: str, _: Any) -> None:
        """Time a collection."""
        if phase == "start":
            self.began_s = time.perf_counter()
        elif not self.is_active:
            self.saw += 1
            self.spent_s = (self.spent_s or 0.0) + time.perf_counter() - self.began_s

    def switched(self) -> None:
        """Switch the collector off, or on again."""
        if self.is_active:
            self.did += 1
            gc.collect()
            gc.freeze()
            gc.disable()
        else:
            gc.enable()
            gc.unfreeze()

    def step_ended(self) -> None:
        """Collect once in many steps."""
        self.steps += self.is_active
        if self.is_active and self.steps % STEPS_UNCOLLECTED == 0:
            gc.collect(1)


def tf32() -> OfSetting:
    """Return the patch by which products and convolutions use TF32."""

    def read() -> tuple[bool, bool]:
        return products_take_tf32(), convolutions_take_tf32()

    def write(values: tuple[bool, bool]) -> None:
        products, torch.backends.cudnn.allow_tf32 = values
        are_set, _ = read()
        if products != are_set:
            torch.set_float32_matmul_precision("high" if products else "highest")

    def can_use_tf32(module: nn.Module) -> bool:
        return is_on_gpu(module) and is_fp32(module)

    return OfSetting(read, write, (True, True), can_use_tf32)


def cudnn_benchmark() -> OfSetting:
    """Return the patch by which cuDNN measures which algorithm is fastest."""

    def read() -> bool:
        return bool(torch.backends.cudnn.benchmark)

    def write(value: bool) -> None:
        torch.backends.cudnn.benchmark = value

    def has_convolutions(module: nn.Module) -> bool:
        return is_on_gpu(module) and any("Conv" in type(part).__name__ for part in module.modules())

    return OfSetting(read, write, True, has_convolutions)


def not_deterministic() -> OfSetting:
    """Return the patch that allows algorithms which are not deterministic."""

    def read() -> tuple[bool, bool, bool]:
        is_on = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return is_on, warns, torch.backends.cudnn.deterministic

    def write(values: tuple[bool, bool, bool]) -> None:
        is_on, warns, of_cudnn = values
        torch.use_deterministic_algorithms(is_on, warn_only=warns)
        torch.backends.cudnn.deterministic = of_cudnn

    return OfSetting(read, write, (False, False, False))
