// What the nodes of a call are: what it returned or changed leads to them, and a leaf's are known at once.
#pragma once

#include "reach.h"

namespace {

// Notes the nodes of what a call returned or changed: 1 and 0 for whether there are any, -1 for an error.
int add_call(Known& known, PyObject* output, PyObject* args, uint64_t start) {
  Found found;
  if (!collect(output, MAX_DEPTH, start, found) || !collect_arguments(args, start, found)) return -1;
  return add_found(known, found);
}

bool is_exact_tensor(PyObject* value) { return reinterpret_cast<PyObject*>(Py_TYPE(value)) == python.tensor; }

// Notes the nodes of a leaf: 1 and 0 for whether it has any, -1 for an error.
int add_leaf(Known& known, PyObject* value, PyObject* args, PyObject* module, uint64_t start) {
  if (at::impl::PythonTorchFunctionTLS::stack_len() || !is_exact_tensor(value))
    return add_call(known, value, args, start);
  const at::Tensor& output = THPVariable_Unpack(value);
  NodePtr top;
  Nodes below;
  if (!node_of(output, top) || !top || top->sequence_nr() < start || output.is_view() ||
      !older_nodes(known, args, start, below))
    return add_call(known, value, args, start);
  int plain = are_plain(module);
  if (plain < 0) return -1;
  put_hook(known, top, plain ? top->sequence_nr() : 0);
  if (!plain) known.entries.push_back(top);
  else for (const auto& node : below) lead_to(known, node);
  return 1;
}

// The part of a leaf whose forward is over.
PyObject* part_of(PyObject* label, PyObject* around) {
  PyObject* made = object_of(python.part);
  if (!made) return nullptr;
  part.label.of(made) = Py_NewRef(label);
  part.parent.of(made) = Py_NewRef(around);
  part.running.of(made) = Py_NewRef(Py_False);
  part.depth.of(made) = PyLong_FromSsize_t(depth_of(around) + 1);
  return made;
}

// Adds a call of a leaf of PyTorch: 1 and 0 for whether what it created has hooks, -1 for an error.
int leaf(Trail* trail, PyObject* label, PyObject* around, uint64_t start, PyObject* output, PyObject* args,
         PyObject* module) {
  uint64_t end = at::sequence_number::peek();
  if (start == end) return 1;
  Ref made(part_of(label, around));
  if (!made) return -1;
  enter(places_of(trail), start, made);
  enter(places_of(trail), end, around);
  return add_leaf(*trail->known, output, args, module, start);
}

}  // namespace
