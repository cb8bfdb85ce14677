// A call of a module inside another annotated one, as calls.py and regions.py have it. All others are left to them.
#pragma once

#include "reach.h"
#include "trail.h"

namespace {

// Python's functions, classes and their slots, given once by `prepare_calls`.
struct Calls {
  PyObject *module, *plans, *left, *frame, *end, *end_inside, *say_unnamed, *say_failed, *own_call;
  PyObject *key_call, *key_call_impl, *key_compiled, *key_training, *key_hooks, *key_pre_hooks, *key_forward;
  Slot names, inside, quiet, is_leaf, forward, backward;
  Slot frame_found, frame_is_named, frame_opened, frame_start, frame_trail;
} calls;

// One call; the thread and what else lives as long is borrowed from it.
struct Call {
  PyObject *module, *args, *kwargs;
  Ref names{nullptr}, thread{nullptr}, around{nullptr};
  PyObject* ranges = nullptr;
  bool is_leaf = false;
};

// The trail of a frame, if it is one of this library's.
Trail* trail_of(PyObject* frame) {
  PyObject* trail = calls.frame_trail.of(frame);
  return Py_TYPE(trail)->tp_base == &trail_type ? reinterpret_cast<Trail*>(trail) : nullptr;
}

bool has(PyObject* dictionary, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dictionary, key);
  return found && (PyDict_Check(found) ? PyDict_GET_SIZE(found) > 0 : PyObject_IsTrue(found));
}

// The plan of a module, borrowed; none where it has none, or is not a module like any other.
PyObject* plan_of(PyObject* dictionary) {
  PyObject* hooks = PyDict_GetItemWithError(dictionary, calls.key_hooks);
  Ref key(hooks ? PyLong_FromVoidPtr(hooks) : nullptr);
  return key ? PyDict_GetItemWithError(calls.plans, key) : nullptr;
}

bool is_quiet(PyObject* plan, PyObject* dictionary) {
  return calls.quiet.is(plan, Py_True) && !has(dictionary, calls.key_training);
}

bool is_leaf(PyObject* plan, PyObject* dictionary, PyObject* kwargs) {
  return calls.is_leaf.is(plan, Py_True) && !PyDict_GET_SIZE(kwargs) && !has(dictionary, calls.key_hooks) &&
         !has(dictionary, calls.key_pre_hooks) && !PyDict_Contains(dictionary, calls.key_forward);
}

bool is_alive(PyObject* reference) {
  Ref it(PyObject_CallNoArgs(reference));
  return it && it != Py_None;
}

// Whether a frame is of a call that this knows.
bool is_running(PyObject* frame) {
  return frame != Py_None && part.running.is(frame, Py_True) &&
         trail_of(frame) && stack.ended.is(calls.frame_opened.of(frame), Py_False);
}

// Looks up what is around a call; false where Python is to handle it.
bool find(Call& call) {
  Ref dictionary(PyObject_GenericGetDict(call.module, nullptr));
  Ref plan(Py_XNewRef(dictionary ? plan_of(dictionary) : nullptr));
  if (!plan || !calls.inside.is(plan, Py_None) || is_quiet(plan, dictionary) || !is_active()) return false;
  call.thread.it = this_thread();
  if (!call.thread || !is_alive(stack.calls.of(call.thread))) return false;
  call.around.it = Py_NewRef(stack.frame.of(call.thread));
  if (c10::GradMode::is_enabled() && !is_running(call.around)) return false;
  call.names.it = Py_NewRef(calls.names.of(plan));
  call.ranges = stack.ranges.of(call.thread);
  call.is_leaf = is_leaf(plan, dictionary, call.kwargs);
  return true;
}

// Whether `nn.Module.__call__` would do no more than to call `_call_impl`; -1 for an error.
int is_plain_call(PyObject* call, PyObject* module) {
  if (call != calls.own_call) return false;
  Ref compiled(PyObject_GetAttr(module, calls.key_compiled));
  return compiled ? compiled == Py_None : -1;
}

// Calls the module as it is called without annotation.
PyObject* call_module(const Call& call) {
  PyObject* function = PyDict_GetItemWithError(calls.module, calls.key_call);
  int is_plain = is_plain_call(function, call.module);
  if (is_plain < 0) return nullptr;
  c10::SmallVector<PyObject*, 8> values{call.module};
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(call.args); at++) values.push_back(PyTuple_GET_ITEM(call.args, at));
  size_t count = values.size();
  Ref names(PyDict_GET_SIZE(call.kwargs) ? PySequence_Tuple(call.kwargs) : nullptr);
  for (Py_ssize_t at = 0; names && at < PyTuple_GET_SIZE(names.it); at++)
    values.push_back(PyDict_GetItemWithError(call.kwargs, PyTuple_GET_ITEM(names.it, at)));
  if (is_plain) return PyObject_VectorcallMethod(calls.key_call_impl, values.data(), count, names);
  return PyObject_Vectorcall(function, values.data(), count, names);
}

// Logs an error of ours, which must not break the program; false for Ctrl-C and the like, which goes on.
bool is_said(const char* message) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace) PyException_SetTraceback(value, trace);
  Ref types(type), error(value), traces(trace);
  return is_done(PyObject_CallFunction(calls.say_failed, "sO", message, value));
}

bool is_unnamed_said(PyObject* label) { return is_done(PyObject_CallOneArg(calls.say_unnamed, label)); }

// Does something in a `finally`: with the error that is set, if there is no output.
template <typename Last>
PyObject* finally(PyObject* output, Last last) {
  if (output) {
    if (last()) return output;
    Py_DECREF(output);
    return nullptr;
  }
  Pending error;
  if (last()) error.restore();
  else error.drop();
  return nullptr;
}

// Notes what a leaf made; false for an error.
bool note_leaf(const Call& call, PyObject* output, uint64_t start) {
  PyObject* label = calls.backward.of(call.names);
  Trail* trail = trail_of(call.around);
  int result = trail ? leaf(trail, label, call.around, start, output, call.args, call.module) : -1;
  if (!trail) PyErr_SetString(PyExc_RuntimeError, "the call around this one is over");
  if (result > 0 || (!result && is_unnamed_said(label))) return true;
  return is_said("a module has no backward range");
}

PyObject* in_leaf_range(const Call& call, PyObject* opened) {
  uint64_t start = at::sequence_number::peek();
  PyObject* output = open_in(call.ranges, opened) ? call_module(call) : nullptr;
  if (output && !note_leaf(call, output, start)) Py_CLEAR(output);
  return finally(output, [&] { return close(call.ranges, opened); });
}

// regions.begin_inside, without the range
PyObject* begin_inside(const Call& call, PyObject* opened) {
  PyObject* frame = object_of(calls.frame);
  PyObject* parent = call.around;
  uint64_t start = at::sequence_number::peek();
  if (!frame) return nullptr;
  part.label.of(frame) = Py_NewRef(calls.backward.of(call.names));
  part.parent.of(frame) = Py_NewRef(parent);
  part.running.of(frame) = Py_NewRef(Py_True);
  part.depth.of(frame) = PyLong_FromSsize_t(depth_of(parent) + 1);
  calls.frame_opened.of(frame) = Py_NewRef(opened);
  calls.frame_trail.of(frame) = Py_NewRef(calls.frame_trail.of(parent));
  calls.frame_start.of(frame) = PyLong_FromUnsignedLongLong(start);
  calls.frame_found.of(frame) = Py_NewRef(Py_None);
  calls.frame_is_named.of(frame) = Py_NewRef(Py_False);
  enter(places_of(trail_of(call.around)), start, frame);
  stack.frame.set(call.thread, frame);
  return frame;
}

PyObject* arguments_of(const Call& call) {
  if (!PyDict_GET_SIZE(call.kwargs)) return Py_NewRef(call.args);
  Ref values(PyDict_Values(call.kwargs));
  Ref more(values ? PyList_AsTuple(values) : nullptr);
  return more ? PySequence_Concat(call.args, more) : nullptr;
}

bool end_in_python(const Call& call, PyObject* frame, PyObject* output, PyObject* arguments) {
  PyObject* args[] = {frame, call.thread, output, arguments};
  return is_done(PyObject_Vectorcall(calls.end_inside, args, 4, nullptr));
}

// regions.end_inside
bool end_inside(const Call& call, PyObject* frame, uint64_t start, PyObject* output) {
  Ref arguments(arguments_of(call));
  if (!arguments) return false;
  if (calls.frame_trail.is(frame, Py_None) || !part.running.is(call.around, Py_True) ||
      !stack.frame.is(call.thread, frame) || !calls.frame_found.is(frame, Py_None))
    return end_in_python(call, frame, output, arguments);
  Ref trail(Py_NewRef(calls.frame_trail.of(frame)));
  auto* known = reinterpret_cast<Trail*>(trail.it);
  if (at::sequence_number::peek() != start) {
    int result = add_call(*known->known, output, arguments, start);
    if (result < 0 || (!result && !is_unnamed_said(part.label.of(frame)))) return false;
  }
  part.running.set(frame, Py_False);
  enter(places_of(known), at::sequence_number::peek(), call.around);
  stack.frame.set(call.thread, call.around);
  calls.frame_trail.set(frame, Py_None);
  return close(call.ranges, calls.frame_opened.of(frame));
}

// What a call that was not ended leaves to do.
bool end_failed(PyObject* frame, PyObject* opened) {
  if (calls.frame_trail.is(frame, Py_None) && stack.ended.is(opened, Py_True)) return true;
  return is_done(PyObject_CallOneArg(calls.end, frame));
}

PyObject* in_inner_range(const Call& call, PyObject* opened) {
  Ref frame(open_in(call.ranges, opened) ? begin_inside(call, opened) : nullptr);
  if (!frame) return finally(nullptr, [&] { return close(call.ranges, opened); });
  uint64_t start = places_of(trail_of(call.around))->bounds.back();
  PyObject* output = call_module(call);
  if (output && !end_inside(call, frame, start, output) && !is_said("a region has no backward range"))
    Py_CLEAR(output);
  return finally(output, [&] { return end_failed(frame, opened); });
}

PyObject* in_bare_range(const Call& call, PyObject* opened) {
  PyObject* output = open_in(call.ranges, opened) ? call_module(call) : nullptr;
  return finally(output, [&] { return close(call.ranges, opened); });
}

// call(module, args, kwargs): makes the call, or returns `left`.
PyObject* call(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !PyTuple_Check(given[1]) || !PyDict_Check(given[2]))
    return PyErr_Format(PyExc_TypeError, "module, args, kwargs");
  Call call{given[0], given[1], given[2]};
  if (!find(call)) {
    PyErr_Clear();  // Python meets the same error, if there is one
    return Py_NewRef(calls.left);
  }
  Ref opened(dependent_range(calls.forward.of(call.names), stack.calls.of(call.thread)));
  if (!opened) return nullptr;
  if (!c10::GradMode::is_enabled()) return in_bare_range(call, opened);
  return call.is_leaf ? in_leaf_range(call, opened) : in_inner_range(call, opened);
}

}  // namespace
