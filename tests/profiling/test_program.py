"""A program that runs in our process is as under `python train.py`: what it is told, prints, and how it ends."""

import compileall
import os
import subprocess
import sys
import zipfile

import pytest

from tests.profiling.making.recordings import REPOSITORY

RUN = """
import sys
from nvtx_kernels.profiling import program
words, sys.argv = sys.argv[1:], ["nvtx-kernels"]
try:
    program.run(words[words[0] == "-m":], is_module=words[0] == "-m")
except BaseException as error:
    if isinstance(error, SystemExit):
        raise
    program.end_with(error)
"""
SAYS = """
import atexit, os, sys, threading
def say(where):
    main = sys.modules["__main__"]
    print(where, __name__, "__file__" in globals(), sys.argv, sys.path[0], vars(main) is globals(), flush=True)
say("at first")
kind = type(__loader__).__name__
print(__file__, __package__, __spec__ and __spec__.name, kind, __builtins__.__name__, __doc__, sorted(globals()))
atexit.register(say, "at last")
def late():
    threading.main_thread().join()
    say("late")
threading.Thread(target=late).start()
os.chdir("/")
"""
PROGRAMS = {
    "it says what it is": SAYS,
    "an error": "def load():\n    return {}['data']\nload()",
    "an error after another": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('why')",
    "an error because of another": "try:\n    {}[1]\nexcept KeyError as error:\n    raise ValueError from error",
    "an error with a note": "error = ValueError('x')\nerror.add_note('more')\nraise error",
    "several errors": "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])",
    "an error of syntax": "def f(:\n    pass",
    "an error of syntax elsewhere": "compile('def f(:', 'other.py', 'exec')",
    "an error without a text": "class Odd(Exception):\n    def __str__(self): 1 / 0\nraise Odd",
    "an error in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    "an error in the library": "import json\njson.loads('{')",
    "a hook": "import sys\nsys.excepthook = lambda kind, error, at: print(kind, error, at.tb_lineno)\n1 / 0",
    "a status": "raise SystemExit(5)",
    "a large status": "raise SystemExit(1000)",
    "no status": "raise SystemExit",
    "a message": "import sys\nsys.exit('no data')",
    "an odd message": "raise SystemExit({'a': 1})",
    "Ctrl-C": "raise KeyboardInterrupt",
    "a real Ctrl-C": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "SIGTERM": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
    "a base exception": "class End(BaseException): ...\nraise End('now')",
    "a pipe that is closed": "raise BrokenPipeError('x')",
    "a module that is missing": "import torch_of_nobody",
    "one of ours that is missing": "raise ModuleNotFoundError('no matplotlib', name='matplotlib')",
    "another encoding": "# coding: latin-1\nprint(len('\u00e9'))",
    "a byte order mark": "\ufeffprint(__doc__)",
    "a text that breaks off": "x = '''",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "where it is called from": "import sys\nprint(__file__, '__mp_main__' in sys.modules)",
    "deep recursion": "def f(): f()\ntry: f()\nexcept RecursionError as error: print(error)",
}


def both(folder, *words, text=None):
    """Run a program by Python and in our process; return status, output and complaints of both."""
    if text is not None:
        (folder / "train.py").write_text(text)
    there = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    commands = [sys.executable, *words], [sys.executable, "-c", RUN, *words]
    done = [subprocess.run(command, cwd=folder, env=there, capture_output=True, text=True) for command in commands]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_as_under_python(tmp_path, text):
    plain, ours = both(tmp_path, "train.py", "--epochs", "1", text=text)
    assert ours == plain


WAYS = ("./train.py", "../here/train.py", "sub/train.py", "link.py", "folder", "zipped.zip", "made.pyc")


@pytest.mark.parametrize("path", WAYS)
def test_a_program_is_found_as_by_python(tmp_path, path):
    here = tmp_path / "here"
    for folder in (here, here / "sub", here / "folder"):
        folder.mkdir()
    for name in ("train.py", "sub/train.py", "folder/__main__.py"):
        (here / name).write_text(SAYS)
    (here / "link.py").symlink_to("sub/train.py")
    with zipfile.ZipFile(here / "zipped.zip", "w") as archive:
        archive.writestr("__main__.py", SAYS)
    compileall.compile_file(here / "train.py", quiet=1, legacy=True)
    (here / "train.pyc").rename(here / "made.pyc")
    plain, ours = both(here, path, "x")
    assert ours == plain


@pytest.mark.parametrize("name", ["package.train", "package", "nothing", "train", "json.tool"])
def test_a_module_is_run_as_by_python(tmp_path, name):
    (tmp_path / "package").mkdir()
    for file in ("package/__init__.py", "package/train.py", "package/__main__.py"):
        (tmp_path / file).write_text("" if "init" in file else SAYS)
    plain, ours = both(tmp_path, "-m", name, "/dev/null", text="def f():\n    1 / 0\nf()")
    assert ours == plain
