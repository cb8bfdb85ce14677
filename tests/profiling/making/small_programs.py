"""Small programs that do to their process what programs do, each as its text; most of them train."""

from tests.profiling.making.strangers import PROGRAMS

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def train(steps=40):
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item().hex())
"""
STRANGER = """
import random, torch
from tests.profiling.making.strangers import PROGRAMS
from tests.profiling.making.strangers.harness import bits
torch.manual_seed(0)
random.seed(0)
(program,) = [one for one in PROGRAMS if one.name == {name!r}]
print(bits(program.run(lambda model: model)))
"""

#: By what they do; after the definition of `train`.
WAYS = {
    "trains": "train()",
    "trains for long": "train(400)",
    "ends before the steps do": "train(4)",
    "prints": "print('begin'); train(); import sys; sys.stderr.write('a word\\n')",
    "ends with a status": "train(); raise SystemExit(5)",
    "ends with a message": "train(3); import sys; sys.exit('no data')",
    "ends with a large status": "train(3); import sys; sys.exit(1000)",
    "fails": "train(3)\ndef load(): return {}['data']\nload()",
    "fails in a model": "train(3); model(torch.ones(2, 5))",
    "fails in backward": "train(2); (model(torch.ones(2, 4)).detach().sum()).backward()",
    "fails for two reasons": "try: 1 / 0\nexcept ZeroDivisionError as error: raise ValueError('why') from error",
    "fails with a note": "error = ValueError('x'); error.add_note('and more'); train(2); raise error",
    "fails as a group": "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])",
    "is wrong": "train(2); compile('def f(:', 'other.py', 'exec')",
    "interrupts itself": "train(20); raise KeyboardInterrupt",
    "gets Ctrl-C": "train(20); import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "handles Ctrl-C": "import signal\ntry:\n    train(3); signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt: print('held')\ntrain()",
    "is terminated": "train(20); import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "is terminated early": "train(2); import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "survives nothing": "import os, signal, time\ntry:\n    train(5); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)\nexcept BaseException: print('caught')\nfinally: print('cleaned')",
    "handles SIGTERM": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('asked to end'))\ntrain(3); os.kill(os.getpid(), signal.SIGTERM); train()",
    "asks for SIGTERM": "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.signal(signal.SIGTERM, signal.SIG_IGN) is signal.SIG_DFL); train(); print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)",
    "hangs up": "train(3); import os, signal; os.kill(os.getpid(), signal.SIGHUP)",
    "aborts": "train(3); import os; os.abort()",
    "leaves at once": "train(20); import os; os._exit(7)",
    "has an alarm": "import signal\nclass Late(Exception): ...\ndef late(*_): raise Late\nsignal.signal(signal.SIGALRM, late)\ndef wait():\n    signal.setitimer(signal.ITIMER_REAL, 0.003)\n    for _ in range(10**6): model(torch.ones(2, 4)).sum().backward()\nfor n in range(30):\n    try: wait()\n    except Late: pass\nsignal.setitimer(signal.ITIMER_REAL, 0)\nprint('on time')",
    "waits for children": "import os\ntrain(3)\nchild = os.fork()\nif not child: raise SystemExit(6)\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); train()",
    "forks after the recording": "import os\ntrain(60)\nchild = os.fork()\nif not child: raise SystemExit(6)\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    "forks children that train": "import os, sys\ntrain(3)\nchild = os.fork()\nif not child:\n    train(3); sys.stdout.flush(); os._exit(0)\nos.waitpid(child, 0); train()",
    "terminates a child": "import multiprocessing as mp, time\ntrain(3)\np = mp.get_context('fork').Process(target=time.sleep, args=(9,)); p.start(); p.terminate(); p.join(); print(p.exitcode); train()",
    "has a pool": "import multiprocessing as mp\ntrain(3)\nwith mp.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, 2]))\ntrain()",
    "loads data in processes": "for batch in torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=1): print(batch)\ntrain()",
    "starts a program": "import subprocess, sys\ntrain(3); print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout); train()",
    "passes its environment on": "import subprocess, os\ntrain(3); print(sorted(set(subprocess.run(['env'], capture_output=True, text=True).stdout.split())  - {'_'}) == sorted(set(' '.join(f'{k}={v}' for k, v in os.environ.items()).split()))); train()",
    "has threads": "import threading\nthreads = [threading.Thread(target=lambda: model(torch.ones(1, 4)).sum().backward()) for _ in range(3)]\n[t.start() for t in threads]; [t.join() for t in threads]; train()",
    "has a late thread": "import threading, time, sys\ndef late():\n    threading.main_thread().join(); time.sleep(0.1); print('late', sys.argv, sys.modules['__main__'].__name__, '__file__' in globals())\nthreading.Thread(target=late).start(); train()",
    "fails in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); train()",
    "ends in functions of atexit": "import atexit, sys\natexit.register(lambda: print('last', sys.argv, sys.path[0] == '', sys.modules['__main__'].__dict__ is globals())); train()",
    "has a hook of its own": "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', kind, error, [f.name for f in __import__('traceback').extract_tb(trace)])\ntrain(2); 1 / 0",
    "says what it is": "import sys, os; print(__name__, os.path.isabs(__file__), __spec__, type(__loader__).__name__, __package__, __builtins__.__name__, sys.argv); train()",
    "goes elsewhere": "import os\nos.chdir('/'); print(open(__file__).read()[:5]); train()",
    "writes files": "open('made.txt', 'w').write('x'); train(); torch.save(model.state_dict(), 'model.pt')",
    "writes files as others may": "import os\nos.umask(0o002); train(); open('made.txt', 'w').write('x'); print(oct(os.stat('made.txt').st_mode))",
    "makes a file in a thread": "import os, threading\nmodes, over = set(), False\ndef make():\n    while not over:\n        open('made.txt', 'w').close(); modes.add(oct(os.stat('made.txt').st_mode)); os.unlink('made.txt')\nt = threading.Thread(target=make); t.start(); train(60); over = True; t.join(); print(modes)",
    "changes its environment": "import os\nos.environ['X'] = '1'; train(); os.environ.pop('X'); os.environ['Y'] = '2'",
    "clears its paths": "import sys\ntrain(2); sys.path.clear(); train()",
    "patches json": "import json\ntrain(2); json.dumps = lambda *_, **__: 1 / 0; train()",
    "warns": "import warnings\nfor _ in range(60):\n    warnings.warn('again')\n    train(1)",
    "turns warnings into errors": "import warnings\nwarnings.simplefilter('error'); train()",
    "logs": "import logging\nlogging.basicConfig(level='DEBUG'); logging.info('begin'); train(); logging.getLogger('x').warning('end')",
    "closes standard error": "import sys\nsys.stderr.close(); train()",
    "has no standard error": "import sys\nsys.stderr = None; train()",
    "fills standard error": "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 2); train()",
    "leaves pipes to the system": "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nr, w = os.pipe(); os.close(r); os.dup2(w, 2); train()",
    "opens a file as number 2": "import os\nos.close(2); file = open('data.txt', 'w'); print(file.fileno()); train(); file.write('data'); file.close()",
    "puts a stream over standard error": "import io, sys\nsys.stderr = io.StringIO(); train()",
    "takes arguments": "import argparse\np = argparse.ArgumentParser(); p.add_argument('--n', type=int, default=3); print(p.parse_args()); train()",
    "recurses": "import sys\ndef deep(n): return n if not n else deep(n - 1)\ntrain(3); print(deep(800), sys.getrecursionlimit()); train()",
    "sets a limit": "import sys\nsys.setrecursionlimit(3000); train()",
    "collects no garbage": "import gc\ngc.disable(); train()",
    "profiles itself": "with torch.profiler.profile() as p: train(2)\nprint(len(p.events()) > 9); train()",
    "profiles itself with stacks": "train(2)\nwith torch.profiler.profile(with_stack=True) as p: train(20)\nprint(len(p.key_averages()) > 9); train()",
    "counts calls with a profile function": "import sys\nseen = set()\nsys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_name)); train(2); sys.setprofile(None); print('train' in seen); train()",
    "is asynchronous": "import asyncio, signal\nasync def main():\n    train(3); await asyncio.sleep(0); train(); print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\nasyncio.run(main())",
    "is cancelled by Ctrl-C": "import asyncio, os, signal\nasync def main():\n    train(3); os.kill(os.getpid(), signal.SIGINT)\n    try: await asyncio.sleep(9)\n    except asyncio.CancelledError: print('cancelled'); raise\nasyncio.run(main())",
    "traces a model": "for _ in range(9):\n    traced = torch.jit.trace(model, torch.ones(2, 4)); print(len(list(traced.graph.nodes())))\ntrain()",
    "subclasses tensors": "class T(torch.Tensor):\n    @classmethod\n    def __torch_function__(c, f, t, a=(), k=None):\n        print(getattr(f, '__name__', f)); return super().__torch_function__(f, t, a, k or {})\nfor _ in range(40): model(torch.ones(2, 4).as_subclass(T)).as_subclass(torch.Tensor).sum().backward(); optimizer.step()",
    "has a mode of functions": "from torch.overrides import TorchFunctionMode\nclass M(TorchFunctionMode):\n    def __torch_function__(self, f, t, a=(), k=None):\n        print(getattr(f, '__name__', f)); return f(*a, **(k or {}))\nwith M(): train(20)",
    "has a lazy mapping": "import collections.abc\nclass L(collections.abc.Mapping):\n    def __getitem__(s, k): print('looked', k); return torch.ones(2, 4)\n    def __iter__(s): return iter('xy')\n    def __len__(s): return 2\n    def __bool__(s): raise RuntimeError\nclass N(torch.nn.Module):\n    def __init__(s): super().__init__(); s.l = torch.nn.Linear(4, 4)\n    def forward(s, x): return s.l(x['x'])\nn = N(); o = torch.optim.SGD(n.parameters(), 0.1)\nfor _ in range(40): n(L()).sum().backward(); o.step()",
    "compiles a step": "@torch.compile(backend='eager')\ndef step(x): loss = model(x).sum(); loss.backward(); optimizer.step(); optimizer.zero_grad(); return loss\nfor _ in range(20): print(step(torch.ones(2, 4)).item())",
    "makes many models": "for _ in range(20):\n    m = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), 0.1); m(torch.ones(1, 4)).sum().backward(); o.step()\nprint(sorted(vars(m)))",
    "pickles a model": "import pickle\ntrain(3); print(len(pickle.dumps(model))); train(); print(len(pickle.dumps(model)))",
    "counts the objects of a model": "import sys\ntrain(3); print(sys.getrefcount(model), len(model._forward_hooks)); train(); print(sys.getrefcount(model))",
    "only computes": "print(model(torch.ones(2, 4)).sum().item())",
    "does nothing": "",
    "imports itself": "import train as again; print(again.__name__, __name__)",
    "is an error of syntax": "def f(:",
    "is no text": "x = '\ud800'",
}


def _text(way: str) -> str:
    return TRAIN.replace("def train(", "def train(", 1) + way


SMALL = {f"it {name}": (_text(text) if name != "is an error of syntax" else text) for name, text in WAYS.items()}
SMALL |= {one.name: STRANGER.format(name=one.name) for one in PROGRAMS if not one.needs and not one.slow}
