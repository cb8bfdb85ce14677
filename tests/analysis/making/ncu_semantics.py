"""Which launches ncu's NVTX filters select, by the text of the filter and the pushes and pops of a report.

Written from the Nsight Compute CLI manual, "NVTX Filtering" (2025.3), apart from the code that makes the filters:
it reads the options as ncu does, and replays every push, pop and launch of a report in the order of their times.
"""

import re
from collections import defaultdict

KERNEL, PUSH_POP = 0, 0
TOKEN = re.compile(r"\\(?P<escaped>.)|(?P<quantifier>[@/\[\]*+,])|(?P<plain>[^\\@/\[\]*+,]+)")


def parsed(text):
    """Return a filter's domain, its elements (names, `*`, `+`), and whether it asks for the bottom and the top."""
    tokens = [(found.lastgroup, found[found.lastgroup]) for found in TOKEN.finditer(text)]
    assert "".join(("\\" if kind == "escaped" else "") + value for kind, value in tokens) == text
    domain, elements, name, bottom, top = "", [], "", False, False
    for kind, value in tokens:
        if kind != "quantifier":
            name += value
        elif value == "@":
            domain, name = name, ""
        elif value == "[":
            assert not [*elements, *name], "[ stands before the first name"
            bottom = True
        elif value == "]":
            top = True
        elif value == "/":
            elements, name = [*elements, *([("name", name)] if name else [])], ""
        elif value in "*+":
            assert not name, "* and + stand between two /"
            elements.append((value, ""))
        else:
            raise AssertionError("a comma is for start/end ranges")
    elements += [("name", name)] if name else []
    assert elements[0][0] == elements[-1][0] == "name"
    assert bottom or top or len(elements) > 1 or text.endswith("/"), f"{text} means a start/end range"
    return domain, elements, bottom, top


def selects(text, stacks):
    """Return whether a filter selects a launch under these stacks, by domain."""
    domain, elements, bottom, top = parsed(text)
    stack = stacks.get(domain, [])
    starts = [0] if bottom else range(len(stack))
    return any(_from(stack, at, elements, top) for at in starts)


def _from(stack, at, elements, top):
    if not elements:
        return at == len(stack) or not top
    (kind, name), *rest = elements
    if kind == "*":
        return any(_from(stack, after, rest, top) for after in range(at, len(stack) + 1))
    if at >= len(stack):
        return False
    return (kind == "+" or stack[at] == name) and _from(stack, at + 1, rest, top)


def selected(options, trace):
    """Return the positions in `Work` of the kernels that ncu's options select in a report, and all kernels."""
    words = list(options)
    includes = [words[at + 1] for at, word in enumerate(words) if word == "--nvtx-include"]
    assert not includes or "--nvtx" in words, "NVTX filtering needs --nvtx"
    by_process = "--nvtx-push-pop-scope" in words and words[words.index("--nvtx-push-pop-scope") + 1] == "process"
    pattern = words[words.index("--kernel-name") + 1] if "--kernel-name" in words else "regex:"
    skip = int(words[words.index("--launch-skip") + 1]) if "--launch-skip" in words else 0
    count = int(words[words.index("--launch-count") + 1]) if "--launch-count" in words else 10**9
    known = {}
    found = []
    for row, stacks in launches(trace, by_process):
        key = tuple(map(str, stacks.items()))
        if includes and key not in known:
            known[key] = any(selects(text, stacks) for text in includes)
        if re.search(pattern.removeprefix("regex:"), function(trace.names[trace.work.name_id[row]])):
            found += [row] if not includes or known[key] else []
    return found[skip : skip + count]


def function(name):
    """Return a demangled kernel's function: no return type, scope, template arguments or parameters."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::", "", name)
    return re.split(r"[<(]", name.removeprefix("void "))[0].rsplit("::", 1)[-1]


def launches(trace, by_process):
    """Yield each kernel in the order of launches with the stacks of its thread, or its process, by domain."""
    events = []
    ranges = trace.ranges
    for at in range(len(ranges)):
        if ranges.style[at] == PUSH_POP:
            thread, length = int(ranges.thread[at]), int(ranges.end_ns[at] - ranges.start_ns[at])
            events.append((int(ranges.start_ns[at]), 2, -length, at, thread))
            events.append((int(ranges.end_ns[at]), 0, length, -at, thread))
    for row in range(len(trace.work)):
        launch = int(trace.work.launch[row])
        if trace.work.kind[row] == KERNEL and launch >= 0:
            events.append((int(trace.launches.start_ns[launch]), 3, 0, row, int(trace.launches.thread[launch])))
    stacks = defaultdict(lambda: defaultdict(list))
    for _, kind, _, what, thread in sorted(events):
        owner = trace.threads[thread].process if by_process else thread
        if kind == 3:
            yield what, {domain: list(stack) for domain, stack in stacks[owner].items() if stack}
            continue
        at = what if kind == 2 else -what
        stack = stacks[owner][trace.domains[ranges.domain[at]].name]
        name = trace.names[ranges.name_id[at]]
        if kind == 2:
            stack.append(name)
        else:
            assert stack.pop() == name, "ranges of one stack are popped in the order of their pushes"
