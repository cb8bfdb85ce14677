// What the hook of a node does: makes the ranges that a pass has open on this thread the path of the node's part, as
// engine.py's `reach` does. Where that is more than to close some and open others, Python's is called.
#pragma once

#include "ranges.h"
#include "walk.h"

namespace {

// Of Part.
struct PartSlots {
  Slot depth, label, parent, running;
} part;

bool is_ended(PyObject* one) { return one != Py_None && part.running.is(one, Py_False); }

Py_ssize_t depth_of(PyObject* one) { return PyLong_AsSsize_t(part.depth.of(one)); }

// The ranges to close, and the parts to open one for, innermost first.
struct Way {
  Py_ssize_t closed = 0;
  c10::SmallVector<PyObject*, 8> opened;
};

// Finds the way from the innermost range's part to another; false where Python is to find it.
bool find_way(PyObject* last, PyObject* wanted, Way& way) {
  while (wanted != last) {
    if (!is_ended(wanted) || !is_ended(last)) return false;
    if (depth_of(last) >= depth_of(wanted)) {
      last = part.parent.of(last);
      way.closed++;
    } else {
      way.opened.push_back(wanted);
      wanted = part.parent.of(wanted);
    }
  }
  return is_ended(wanted);
}

// Opens the backward range of a part, in the pass and below the range that `top` is of.
bool open_backward(PyObject* ranges, PyObject* one, PyObject* pass_id, PyObject* alive) {
  Ref made(range_of(stack.backward, part.label.of(one)));
  if (!made) return false;
  stack.alive.of(made) = Py_NewRef(alive);
  stack.part.of(made) = Py_NewRef(one);
  stack.pass_id.of(made) = Py_NewRef(pass_id);
  return open_in(ranges, made);
}

bool go(PyObject* ranges, PyObject* top, const Way& way) {
  Ref kept(Py_NewRef(top));
  for (Py_ssize_t at = 0; at < way.closed; at++)
    if (!pop(ranges)) return false;
  for (auto one = way.opened.rbegin(); one != way.opened.rend(); one++)
    if (!open_backward(ranges, *one, stack.pass_id.of(top), stack.alive.of(top))) return false;
  return true;
}

PyObject* reach_in_python(PyObject* wanted, int pass, bool is_sure) {
  Ref id(PyLong_FromLong(pass));
  PyObject* args[] = {wanted, id, is_sure ? Py_True : Py_False};
  return id ? PyObject_Vectorcall(python.reach, args, 3, nullptr) : nullptr;
}

bool is_of_pass(PyObject* top, int pass) {
  return top && reinterpret_cast<PyObject*>(Py_TYPE(top)) == stack.backward &&
         PyLong_AsLong(stack.pass_id.of(top)) == pass;
}

PyObject* reach_part(PyObject* wanted, int pass) {
  auto* chosen = ag::get_current_graph_task_exec_info();
  bool is_sure = !chosen || chosen->empty();
  Ref thread(this_thread());
  if (!thread) return nullptr;
  PyObject* ranges = stack.ranges.of(thread);
  PyObject* top = innermost(ranges);
  if (wanted == Py_None || !is_of_pass(top, pass)) return reach_in_python(wanted, pass, is_sure);
  if (stack.part.is(top, wanted)) Py_RETURN_NONE;
  Way way;
  if (!is_sure || !find_way(stack.part.of(top), wanted, way)) return reach_in_python(wanted, pass, is_sure);
  if (!go(ranges, top, way)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* reach(const Core& core, int pass, uint64_t number) {
  if (core.is_removed || !is_active()) Py_RETURN_NONE;
  if (core.trail) walk(core.trail, LEAF);
  PyObject* places = core.trail ? core.trail->places : core.places;
  if (!places) Py_RETURN_NONE;  // of a forward that was interrupted
  Ref wanted(Py_NewRef(part_at(reinterpret_cast<Places*>(places), number)));
  return reach_part(wanted, pass);
}

}  // namespace
