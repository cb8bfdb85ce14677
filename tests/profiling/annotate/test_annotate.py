import asyncio
import json
import subprocess
import sys
import threading

import pytest
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack

from tests.profiling.making.hearing import Heard, heard_from, in_threads

KINDS = {"range": annotate.range, "region": annotate.region}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def run_python(code):
    """Run code in a process of its own and return the lines that it prints, read as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@each_kind
def test_block_is_a_range_inside_the_one_around_it(kind):
    def program():
        with kind("outer"), kind("first"):
            pass
        with kind("second"):
            pass

    assert heard_from(program) == ["outer", "outer/first", "second"]


@each_kind
def test_decorated_function_keeps_its_name_arguments_and_result(kind):
    @kind("work")
    def divide(a, *, by):
        """Divide."""
        return a / by

    assert heard_from(lambda: divide(1, by=2)) == ["work"]
    assert (divide.__name__, divide.__doc__, divide(1, by=2)) == ("divide", "Divide.", 0.5)


@each_kind
def test_range_closes_when_its_block_or_function_raises(kind):
    @kind("function")
    def fail():
        with kind("block"):
            raise KeyError

    def program():
        for _ in range(2):
            with pytest.raises(KeyError):
                fail()

    assert heard_from(program) == ["function", "function/block"] * 2


@each_kind
def test_recursion_nests(kind):
    @kind("call")
    def call(depth):
        return call(depth - 1) if depth else 0

    assert heard_from(lambda: call(2)) == ["call", "call/call", "call/call/call"]


@each_kind
def test_generator_is_in_its_range_only_while_it_runs(kind):
    @kind("generator")
    def count():
        for number in range(2):
            assert (yield number) == f"for {number}"
        return "done"

    def program():
        generator = count()
        assert next(generator) == 0
        with kind("consumer"):
            pass
        assert generator.send("for 0") == 1
        with pytest.raises(StopIteration, match="done"):
            generator.send("for 1")

    assert heard_from(program) == ["generator", "consumer", "generator", "generator"]


@each_kind
@pytest.mark.parametrize("ending", ["close", "throw", "dropped"])
def test_generator_that_ends_early_is_told_and_leaves_nothing_open(kind, ending):
    ended = []

    @kind("generator")
    def wait():
        try:
            yield
        finally:
            ended.append(ending)

    def program():
        generator = wait()
        next(generator)
        if ending == "close":
            generator.close()
        elif ending == "throw":
            with pytest.raises(KeyError):
                generator.throw(KeyError)

    heard_from(program)
    assert ended == [ending]


@each_kind
def test_coroutines_that_take_turns_do_not_nest(kind):
    @kind("task")
    async def task(turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    async def both():
        return await asyncio.gather(task(2), task(3))

    results = []
    paths = heard_from(lambda: results.extend(asyncio.run(both())))
    assert (set(paths), len(paths), results) == ({"task"}, 7, [2, 3])


@each_kind
def test_blocks_in_coroutines_that_end_out_of_turn_stay_balanced(kind):
    async def task(name, turns):
        with kind(name):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(task("short", 1), task("long", 3))

    # `short` ends below `long`, which is put back without it.
    assert heard_from(lambda: asyncio.run(both())) == ["short", "short/long", "long"]


@each_kind
def test_block_closed_on_another_thread_is_popped_by_its_own(kind):
    def program():
        block = kind("block")
        block.__enter__()
        in_threads(lambda: block.__exit__(None, None, None))
        with kind("next"):
            pass

    assert heard_from(program) == ["block", "next"]


@each_kind
def test_threads_may_share_one_object_and_have_stacks_of_their_own(kind):
    shared, barrier = kind("shared"), threading.Barrier(3)

    def work():
        for _ in range(20):
            with shared:
                barrier.wait(10)
                with shared:
                    barrier.wait(10)

    assert sorted(heard_from(lambda: in_threads(work, work, work))) == ["shared"] * 60 + ["shared/shared"] * 60


def test_asynchronous_generator_stays_as_it_is(capsys):
    async def count():
        yield 1

    assert annotate.region("counting")(count) is count
    assert "asynchronous generator" in capsys.readouterr().err


def test_class_is_refused_with_what_to_do_instead():
    with pytest.raises(TypeError, match="annotate_modules"):
        annotate.region("part")(dict)


def test_payload_reaches_the_listener():
    heard = Heard()
    with annotate.listen(heard), annotate.range("step", payload=7), annotate.region("layer 3", payload=3):
        pass
    assert heard.payloads == [7, 3]


def test_mark_reaches_every_listener():
    first, second = Heard(), Heard()
    with annotate.listen(first):
        with annotate.listen(second):
            annotate.mark("both")
        annotate.mark("one")
    annotate.mark("none")
    assert (first.marks, second.marks) == (["both", "one"], ["both"])


def test_listener_hears_no_end_of_what_began_before_it():
    heard = Heard()
    with annotate.range("before"), annotate.listen(heard), annotate.range("during"):
        pass
    assert (heard.paths, heard.left_open()) == (["during"], [])


@pytest.mark.parametrize("failing", ["push", "pop", "mark"])
def test_listener_that_raises_is_dropped_and_the_program_goes_on(failing, capsys):
    def fail(*values):
        raise OSError("disk full")

    broken, heard = Heard(), Heard()
    setattr(broken, failing, fail)
    with annotate.listen(broken), annotate.listen(heard):
        with annotate.range("first"):
            annotate.mark("mark")
        with annotate.range("second"):
            pass
    assert heard.paths == ["first", "second"]
    assert capsys.readouterr().err.count("a listener of ranges failed") == 1


def test_nothing_is_heard_when_nobody_listens():
    assert range_stack.active is False
    with annotate.range("unheard"):
        assert range_stack.stack() == []


def test_environment_variable_switches_everything_off():
    code = """if True:
        import json, os, torch  # which takes long, and so is imported once

        def say(value):
            os.environ["NVTX_KERNELS_OFF"] = value
            from profiling import annotate
            from tests.profiling.making.hearing import Heard
            heard = Heard()
            with annotate.listen(heard), annotate.range("range"), annotate.region("region"):
                annotate.mark("mark")
            print(json.dumps([heard.paths, heard.marks]), flush=True)

        for value in ("1", "0", ""):
            if os.fork() == 0:
                say(value)
                os._exit(0)
            os.wait()
    """
    on = [["range", "range/region"], ["mark"]]
    assert run_python(code) == [[[], []], on, on]


def test_forked_child_neither_hears_nor_breaks():
    code = """if True:
        import json, os
        from profiling import annotate
        from tests.profiling.making.hearing import Heard
        heard = Heard()
        with annotate.listen(heard):
            with annotate.range("parent"):
                child = os.fork()
                with annotate.range("both"):
                    pass
            if child == 0:
                os._exit(len(heard.paths) + 10 * len(heard.left_open()))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([heard.paths, status]))
    """
    assert run_python(code) == [[["parent", "parent/both"], 11]]
