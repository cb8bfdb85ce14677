// What a thread has open, as open_ranges.py and range_stack.py have it: the same Python objects, made, read and changed
// here without a call of Python's. Whatever is unusual is left to Python.
#pragma once

#include "places.h"

#include <structmember.h>

namespace {

// A new reference, or none.
struct Ref {
  PyObject* it;
  explicit Ref(PyObject* owned) : it(owned) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(it); }
  operator PyObject*() const { return it; }
  PyObject* release() { return std::exchange(it, nullptr); }
};

// An error that is set aside while something else is done.
class Pending {
  PyObject *type, *value, *trace;

 public:
  Pending() { PyErr_Fetch(&type, &value, &trace); }
  void restore() { PyErr_Restore(type, value, trace); }
  void drop() {
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  }
};

// An attribute of a Python class that is in its `__slots__`: where its objects keep it.
struct Slot {
  Py_ssize_t offset;
  PyObject*& of(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
  }
  bool is(PyObject* object, PyObject* value) const { return of(object) == value; }
  void set(PyObject* object, PyObject* value) const { Py_XDECREF(std::exchange(of(object), Py_NewRef(value))); }
};

bool find_slot(PyObject* kind, const char* name, Slot& slot) {
  Ref found(PyObject_GetAttrString(kind, name));
  if (!found) return false;
  if (Py_TYPE(found.it) != &PyMemberDescr_Type)
    return PyErr_Format(PyExc_TypeError, "%R has no slot %s", kind, name) != nullptr;
  slot.offset = reinterpret_cast<PyMemberDescrObject*>(found.it)->d_member->offset;
  return true;
}

// Python's functions, classes and their slots, given once by `prepare`.
struct Stack {
  PyObject *module, *local, *push, *pop, *described, *tell, *tell_end, *close;
  PyObject *dependent, *backward;
  Slot label, ended, in_tool, listeners, alive, part, pass_id;
  Slot attributes, ranges, calls, frame;
  PyObject *key_active, *key_listeners, *key_thread, *nobody;
  bool has_tool;
} stack;

PyObject* stack_value(PyObject* key) { return PyDict_GetItemWithError(stack.module, key); }

bool is_active() { return stack_value(stack.key_active) == Py_True; }

PyObject* this_thread() { return PyObject_GetAttr(stack.local, stack.key_thread); }

bool is_done(PyObject* result) {
  Py_XDECREF(result);
  return result;
}

bool push_to_tool(PyObject* opened) {
  PyObject* label = stack.label.of(opened);
  PyObject* known = stack.attributes.of(label);
  Ref attributes(known == Py_None ? PyObject_CallOneArg(stack.described, label) : Py_NewRef(known));
  if (!attributes) return false;
  stack.in_tool.set(opened, Py_True);
  return is_done(PyObject_CallOneArg(stack.push, attributes));
}

// range_stack.open_in
bool open_in(PyObject* ranges, PyObject* opened) {
  if (PyList_Append(ranges, opened) || (stack.has_tool && !push_to_tool(opened))) return false;
  PyObject* listeners = stack_value(stack.key_listeners);
  return !listeners || !PyTuple_GET_SIZE(listeners) || is_done(PyObject_CallOneArg(stack.tell, opened));
}

PyObject* innermost(PyObject* ranges) {
  Py_ssize_t count = PyList_GET_SIZE(ranges);
  return count ? PyList_GET_ITEM(ranges, count - 1) : nullptr;
}

// range_stack.pop
bool pop(PyObject* ranges) {
  Ref opened(Py_XNewRef(innermost(ranges)));
  if (!opened) return true;
  if (stack.in_tool.is(opened, Py_True)) {
    stack.in_tool.set(opened, Py_False);
    if (!is_done(PyObject_CallNoArgs(stack.pop))) return false;
  }
  Py_ssize_t count = PyList_GET_SIZE(ranges);
  if (PyList_SetSlice(ranges, count - 1, count, nullptr)) return false;
  return !PyTuple_GET_SIZE(stack.listeners.of(opened)) || is_done(PyObject_CallOneArg(stack.tell_end, opened));
}

// range_stack.close
bool close(PyObject* ranges, PyObject* opened) {
  if (innermost(ranges) != opened) return is_done(PyObject_CallOneArg(stack.close, opened));
  stack.ended.set(opened, Py_True);
  return pop(ranges);
}

PyObject* nothing_if(bool is_fine) { return is_fine ? Py_NewRef(Py_None) : nullptr; }

bool are_open(PyObject* ranges) {
  return PyList_Check(ranges) || PyErr_Format(PyExc_TypeError, "a list of ranges is needed");
}

// open_in(ranges, opened)
PyObject* stack_open_in(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "ranges, opened");
  return are_open(args[0]) ? nothing_if(open_in(args[0], args[1])) : nullptr;
}

// pop(ranges): returns the range.
PyObject* stack_pop(PyObject*, PyObject* ranges) {
  if (!are_open(ranges)) return nullptr;
  Ref opened(Py_XNewRef(innermost(ranges)));
  if (!opened) return PyErr_Format(PyExc_IndexError, "no range is open");
  return pop(ranges) ? opened.release() : nullptr;
}

// close(opened)
PyObject* stack_close(PyObject*, PyObject* opened) {
  Ref thread(this_thread());
  return thread ? nothing_if(close(stack.ranges.of(thread), opened)) : nullptr;
}

// An object of a class whose slots the caller fills, all of them.
PyObject* object_of(PyObject* kind) {
  auto* type = reinterpret_cast<PyTypeObject*>(kind);
  return type->tp_alloc(type, 0);
}

PyObject* range_of(PyObject* kind, PyObject* label) {
  PyObject* made = object_of(kind);
  if (!made) return nullptr;
  stack.label.of(made) = Py_NewRef(label);
  stack.ended.of(made) = Py_NewRef(Py_False);
  stack.in_tool.of(made) = Py_NewRef(Py_False);
  stack.listeners.of(made) = Py_NewRef(stack.nobody);
  return made;
}

PyObject* dependent_range(PyObject* label, PyObject* alive) {
  PyObject* made = range_of(stack.dependent, label);
  if (made) stack.alive.of(made) = Py_NewRef(alive);
  return made;
}

}  // namespace
