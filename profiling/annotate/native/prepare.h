// What Python gives this once: the functions and classes that it calls, by their names, and where objects of those
// classes keep their attributes.
#pragma once

#include "calls.h"

namespace {

struct Needed {
  const char* name;
  PyObject** place;
};

struct NeededSlot {
  PyObject** kind;
  const char* name;
  Slot* place;
};

template <size_t COUNT>
bool take(PyObject* given, const Needed (&needed)[COUNT]) {
  for (const auto& one : needed) {
    PyObject* found = PyDict_Check(given) ? PyDict_GetItemString(given, one.name) : nullptr;
    if (!found) return PyErr_Format(PyExc_TypeError, "%s is needed", one.name) != nullptr;
    *one.place = Py_NewRef(found);
  }
  return true;
}

template <size_t COUNT>
bool take_slots(const NeededSlot (&needed)[COUNT]) {
  for (const auto& one : needed)
    if (!find_slot(*one.kind, one.name, *one.place)) return false;
  return true;
}

bool take_kinds() {
  Ref list(PySequence_List(python.kinds));
  python.without.clear();
  for (Py_ssize_t at = 0; list && at < PyList_GET_SIZE(list.it); at++)
    python.without.push_back(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(list.it, at)));
  return list;
}

// prepare(given): what nodes and ranges need.
PyObject* prepare(PyObject*, PyObject* given) {
  static PyObject *labels, *threads, *has_tool;
  const Needed needed[] = {
      {"reach", &python.reach}, {"items", &python.items}, {"Part", &python.part}, {"kinds", &python.kinds},
      {"Tensor", &python.tensor}, {"Parameter", &python.parameter}, {"stack", &stack.module},
      {"local", &stack.local}, {"push", &stack.push}, {"pop", &stack.pop}, {"described", &stack.described},
      {"tell", &stack.tell}, {"tell_end", &stack.tell_end}, {"close", &stack.close},
      {"DependentRange", &stack.dependent}, {"BackwardRange", &stack.backward}, {"Label", &labels},
      {"Thread", &threads}, {"has_tool", &has_tool}};
  const NeededSlot slots[] = {
      {&stack.backward, "label", &stack.label}, {&stack.backward, "ended", &stack.ended},
      {&stack.backward, "in_tool", &stack.in_tool}, {&stack.backward, "listeners", &stack.listeners},
      {&stack.backward, "alive", &stack.alive}, {&stack.backward, "part", &stack.part},
      {&stack.backward, "pass_id", &stack.pass_id}, {&labels, "attributes", &stack.attributes},
      {&threads, "ranges", &stack.ranges}, {&threads, "calls", &stack.calls}, {&threads, "frame", &stack.frame},
      {&python.part, "depth", &part.depth}, {&python.part, "label", &part.label},
      {&python.part, "parent", &part.parent}, {&python.part, "running", &part.running}};
  if (!take(given, needed) || !take_slots(slots) || !take_kinds()) return nullptr;
  stack.has_tool = PyObject_IsTrue(has_tool);
  Py_RETURN_NONE;
}

// prepare_calls(given): what calls of modules need besides.
PyObject* prepare_calls(PyObject*, PyObject* given) {
  static PyObject *plans, *names;
  const Needed needed[] = {
      {"calls", &calls.module}, {"plans", &calls.plans}, {"left", &calls.left}, {"Frame", &calls.frame},
      {"end_failed", &calls.end}, {"end_inside", &calls.end_inside}, {"say_unnamed", &calls.say_unnamed},
      {"say_failed", &calls.say_failed}, {"own_call", &calls.own_call}, {"Plan", &plans}, {"Names", &names}};
  const NeededSlot slots[] = {
      {&plans, "names", &calls.names}, {&plans, "inside", &calls.inside}, {&plans, "quiet", &calls.quiet},
      {&plans, "is_leaf", &calls.is_leaf}, {&names, "forward", &calls.forward},
      {&names, "backward", &calls.backward}, {&calls.frame, "found", &calls.frame_found},
      {&calls.frame, "is_named", &calls.frame_is_named}, {&calls.frame, "opened", &calls.frame_opened},
      {&calls.frame, "start", &calls.frame_start}, {&calls.frame, "trail", &calls.frame_trail}};
  if (!take(given, needed) || !take_slots(slots)) return nullptr;
  Py_RETURN_NONE;
}

bool make_keys() {
  const Needed keys[] = {
      {"_parameters", &name_parameters}, {"active", &stack.key_active}, {"_listeners", &stack.key_listeners},
      {"thread", &stack.key_thread}, {"_call", &calls.key_call}, {"_call_impl", &calls.key_call_impl},
      {"_compiled_call_impl", &calls.key_compiled}, {"training", &calls.key_training},
      {"_forward_hooks", &calls.key_hooks}, {"_forward_pre_hooks", &calls.key_pre_hooks},
      {"forward", &calls.key_forward}};
  for (const auto& one : keys)
    if (!(*one.place = PyUnicode_InternFromString(one.name))) return false;
  return (stack.nobody = PyTuple_New(0));
}

}  // namespace
