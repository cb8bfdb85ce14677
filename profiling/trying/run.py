"""One run of a program, in a process of its own: what is forked or started there, until it ends by `os._exit`.

The program is stopped in the hook of its last step. No `except`, `finally` or function of atexit of its own runs
then: one may save a model of 25 steps over a good one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..program import report, status_of
from ..training import Profile
from .courses import Count, Course, Screen, plan_of, rounds_of
from .guard import Guard
from .levers import BY_NAME
from .loader_patches import Workers
from .overlay import Place
from .patch import Patch, replace
from .results import Block, Ending, Job, LeverFacts, Line, Seen, Switched, is_worth_a_run, write_line
from .steps import Steps

#: What keeps trackers from making a run of each of ours, and tells programs what runs them.
QUIET = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NVTX_KERNELS_TRY": "1",
}
SEED = 0
STARTS_ITSELF = (
    "it starts its training processes itself ({}): start them by torchrun, as `try torchrun … train.py`"
)
#: Programs that start training processes, in the command of a process.
STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun")
MOST_TEXT = 160
#: Steps in which a program first does what it does once: libraries begin, memory grows.
FIRST_STEPS = 2


class Run:
    """A run of a job: its patches, its steps, and what it writes; ranks but the first write nothing."""

    def __init__(self, job: Job, place: Place, file: int | None) -> None:
        self.job, self._file = job, file
        self._began_s = time.perf_counter()
        names = dict.fromkeys((*job.on, *job.watched))
        self.patches: dict[str, Patch] = {name: BY_NAME[name].patch() for name in names}
        self.guard = Guard(place.writable, may_connect=place.may_connect)
        self.course = self._course()
        self.steps = Steps(self._step_ended, self._call)
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._with_inputs = self._those_with("inputs")
        self._around = self._those_with("around")
        self._with_output = self._those_with("output")
        self._optimizers: dict[int, Optimizer] = {}
        self._arm = ""
        self._raised = dict[str, str]()
        self._timed_from_s = 0.0
        self._spent_s = dict[str, float]()

    def go(self) -> NoReturn:
        """Run the program until it ends or the job is done, write how it ended, and end the process."""
        os.environ.update(QUIET)
        _set_seeds()
        for name, patch in self.patches.items():
            patch.install()
            if name in self.job.on and not patch.waits_for_warm_up:
                patch.switch(on=True)
        self._watch_saving()
        replace(BaseProcess, "start", self._starting)
        self.guard.add("subprocess.Popen", self._hear_command)
        sys.addaudithook(self.guard.hear)
        hook = register_optimizer_step_post_hook(self._updated)
        error = ""
        with ExitStack() as watching:
            watching.callback(hook.remove)
            watching.enter_context(self.steps.heard())
            self.guard.switch(on=True)
            error = self._error_of_program()
            self.finish(error)

    def _error_of_program(self) -> str:
        try:
            status = status_of(self.job.program, is_module=self.job.is_module)
        except BaseException as error:
            self.guard.switch(on=False)
            report(error)
            return text_of(error)
        return f"exit status {status}" if status else ""

    def finish(self, error: str = "") -> NoReturn:
        """Write how the run ended, and end the process."""
        self.guard.switch(on=False)
        arm = self._arm
        try:
            ending = self._ending(error)
            ending.arm = arm
        except Exception as failure:  # of a GPU that has failed
            ending = Ending(error or text_of(failure), arm, self.steps.count)
        self.write(ending)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1 if error else 0)

    def write(self, line: Line) -> None:
        """Write a line of results."""
        if self._file is not None:
            write_line(self._file, line)

    def _ending(self, error: str) -> Ending:
        course = self.course
        if isinstance(course, Screen):
            course.stop()
        ending = Ending(
            error=error,
            steps=self.steps.count,
            losses=self.steps.losses,
            weights=self._norm_of_weights(),
            raised=self._raised,
            refused=[*self.guard.refused],
        )
        if isinstance(course, Count):
            ending.step_ns, ending.warm_up_s = course.step_ns(), course.warm_up_s(self.steps.began_s)
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        ending.device = torch.cuda.get_device_name() if used else "CPU"
        ending.memory_bytes = torch.cuda.max_memory_allocated() if used else None
        for name in self.job.on:
            self.patches[name].switch(on=False)
        ending.levers = self._facts()
        return ending

    def _norm_of_weights(self) -> float:
        """Return the norm of all weights that optimizers update."""
        squares = 0.0
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                of_group = [float(weight.detach().double().square().sum()) for weight in group["params"]]
                squares += sum(of_group)
        return float(squares**0.5)

    def _course(self) -> Course:
        job = self.job
        if job.kind == "screen":
            until_s = time.monotonic() + job.seconds
            return Screen(job.warm_up, until_s, self._plan, self._switch, self._write_block)
        return Count(job.warm_up, job.steps, self._prefetched, self._warmed)

    def _prefetched(self) -> int:
        """Return how many batches were ready before the first step: measured, they would seem to cost nothing."""
        loaders = [patch for patch in self.patches.values() if isinstance(patch, Workers)]
        return max((patch.prefetched for patch in loaders), default=0)

    def _warmed(self) -> None:
        for name in self.job.on:
            if self.patches[name].waits_for_warm_up:
                self.patches[name].switch(on=True)

    def _plan(self) -> list[str]:
        """Return the arms of the plan that have something to change, once all that is there was seen."""
        self._warmed()
        facts = self._facts()
        self._take_shares(facts)
        self.write(Seen(facts, time.perf_counter() - self._began_s))
        arms = [arm for arm in self.job.plan if is_worth_a_run(facts[arm])]
        if not self.job.rounds:
            return arms
        return plan_of(arms, rounds_of(len(arms), self.job.rounds))

    def _facts(self) -> dict[str, LeverFacts]:
        """Return the findings of the levers; those that are for a GPU see nothing where none is used."""
        has_gpu = torch.cuda.is_initialized() or self.job.is_named  # type: ignore[no-untyped-call]
        facts = {}
        for name, patch in self.patches.items():
            is_blind = BY_NAME[name].only_on_gpu and not has_gpu
            facts[name] = LeverFacts(0 if is_blind else patch.saw, patch.did, patch.place, patch.trouble)
        return facts

    def _take_shares(self, facts: dict[str, LeverFacts]) -> None:
        """Note which share of the steps since the first ones each lever could save, where that is known."""
        elapsed_s = time.perf_counter() - self._timed_from_s
        for name, patch in self.patches.items():
            if patch.spent_s is not None and self._timed_from_s:
                facts[name].most_share = (patch.spent_s - self._spent_s[name]) / elapsed_s

    def _switch(self, arm: str, on: bool) -> None:
        self.patches[arm].switch(on=on)
        self._arm = arm if on else ""
        self.write(Switched(self._arm))

    def _write_block(self, block: Block) -> None:
        self.write(block)

    def _step_ended(self, number: int) -> None:
        if number:
            for patch in self.patches.values():
                patch.step_ended()
        if number == FIRST_STEPS:
            self._timed_from_s = time.perf_counter()
            self._spent_s = {name: patch.spent_s or 0.0 for name, patch in self.patches.items()}
        if self.course.step_ended(number):
            self.finish()

    def _call(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make the call of a model as its patches want it."""
        if module not in self._roots:
            self._roots.add(module)
            for patch in self.patches.values():
                patch.new_root(module)
        for patch in self._with_inputs:
            args, kwargs = patch.inputs(args), patch.inputs(kwargs)
        try:
            with ExitStack() as around:
                for patch in self._around:
                    around.enter_context(patch.around(module))
                output = call(module, *args, **kwargs)
        except Exception as error:  # which the program may handle
            self._raised.setdefault(self._arm, text_of(error))
            raise
        for patch in self._with_output:
            output = patch.output(output)
        return output

    def _those_with(self, method: str) -> list[Patch]:
        """Return the patches that have a method of their own."""
        inherited = getattr(Patch, method)
        return [patch for patch in self.patches.values() if getattr(type(patch), method) is not inherited]

    def _updated(self, optimizer: Optimizer, *_: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer

    def _watch_saving(self) -> None:
        """Have `torch.save` ask the guard, which does not hear its writer in C++."""

        def guarded(save: Callable[..., Any]) -> Callable[..., Any]:
            def checked_save(obj: Any, f: Any, *arguments: Any, **options: Any) -> Any:
                if isinstance(f, str | os.PathLike):
                    self.guard.check(f)
                return save(obj, f, *arguments, **options)

            return checked_save

        replace(torch, "save", guarded)

    def _starting(self, start: Callable[..., None]) -> Callable[..., None]:
        """Stop a program that starts processes of `torch.multiprocessing.spawn`, where no lever would be."""

        def started(process: Any) -> None:
            target = getattr(process, "_target", None)
            if getattr(target, "__module__", "") == "torch.multiprocessing.spawn":
                self.finish(STARTS_ITSELF.format("torch.multiprocessing.spawn"))
            start(process)

        return started

    def _hear_command(self, _: str, words: Any, __: Any, variables: Any) -> None:
        """Stop a program that starts ranks by a command: a starter, or itself with a rank, as Lightning does."""
        is_list = isinstance(words, list | tuple)
        command = [os.fsdecode(word) for word in words] if is_list else [str(words)]
        starters = (word for word in command[:4] if Path(word).name in STARTERS)
        starter = next(starters, "")
        is_rank = variables is not None and "LOCAL_RANK" in variables and "LOCAL_RANK" not in os.environ
        if starter or is_rank:
            self.finish(STARTS_ITSELF.format(Path(starter).name or "a process a rank"))


def text_of(error: BaseException) -> str:
    """Return an error's message in one line."""
    memory = "out of memory: " if isinstance(error, torch.OutOfMemoryError) else ""
    return f"{memory}{type(error).__name__}: {error}".strip().split("\n")[0][:MOST_TEXT]


def _set_seeds() -> None:
    """Have every run draw the same random numbers, unless the program seeds them otherwise."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


class Recorded(Profile):
    """Records a program, and ends its process once the report is written and the steps after it are timed."""

    def _is_settled(self) -> None:
        """End the process; of several ranks the first one, with a status that ends the others."""
        if is_first_rank():
            self.__exit__(None, None, None)
            os._exit(int("RANK" in os.environ))


def record(job: Job, place: Place) -> NoReturn:
    """Record the program of a job, and end the process."""
    os.environ.update(QUIET)
    _set_seeds()
    guard = Guard(place.writable, may_connect=place.may_connect)
    sys.addaudithook(guard.hear)
    guard.switch(on=True)
    with Recorded(None, None, job.report, depth=0, every_model=True):
        status = status_of(job.program, is_module=job.is_module)
    os._exit(status)


def go(job: Job, place: Place, results: Path) -> NoReturn:
    """Do a job in this process, and end it."""
    if job.kind == "record":
        record(job, place)
    file = os.open(results, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if is_first_rank() else None
    Run(job, place, file).go()


def is_first_rank() -> bool:
    """Return whether this process is the only one, or the first of torchrun's."""
    return os.environ.get("RANK", "0") == "0"


def save_job(job: Job, place: Place, path: Path) -> None:
    """Write a job for a process that is not forked from this one."""
    path.write_text(json.dumps({"job": asdict(job), "place": asdict(place)}))


def main() -> NoReturn:
    """Do the job of a file, as a rank: JOB RESULTS program …, where the program is that of the job."""
    _, job_file, results, *program = sys.argv
    facts = json.loads(Path(job_file).read_text())
    job = Job(**facts["job"])
    place = Place(**facts["place"])
    job.program = program
    go(job, place, Path(results))
