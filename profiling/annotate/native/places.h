// What the backward needs: which part was innermost from which number of autograd's on (`Places`), and the hook of
// all nodes. Hooks share a `Core`, which keeps the Python `Root` and its `Places`.
#pragma once

#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace ag = torch::autograd;
using NodePtr = decltype(ag::Edge::function);  // shared or intrusive, by PyTorch's version

namespace torch::autograd {
PyObject* functionToPyObject(const NodePtr& node);
}

namespace {

constexpr uint64_t LEAF = std::numeric_limits<uint64_t>::max();
constexpr int MAX_ITEMS = 1000, MAX_DEPTH = 8;

// Python's functions and classes, given once by `prepare`.
struct Python {
  PyObject *reach, *items, *part, *tensor, *parameter, *kinds;
  std::vector<PyTypeObject*> without;
} python;
PyObject* name_parameters;

struct Core;
extern PyTypeObject places_type, trail_type;

struct Places {
  PyObject_HEAD
  std::vector<uint64_t> bounds;
  std::vector<PyObject*> parts;
  std::weak_ptr<Core> core;
};

PyObject* part_at(Places* self, uint64_t number) {
  auto above = std::upper_bound(self->bounds.begin(), self->bounds.end(), number) - self->bounds.begin();
  // As in a list of Python's, what is before the first is the last.
  return self->parts.empty() ? Py_None : self->parts[above ? above - 1 : self->parts.size() - 1];
}

PyObject* places_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Places*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->bounds) std::vector<uint64_t>();
  new (&self->parts) std::vector<PyObject*>();
  new (&self->core) std::weak_ptr<Core>();
  return reinterpret_cast<PyObject*>(self);
}

int places_traverse(Places* self, visitproc visit, void* arg) {
  for (PyObject* part : self->parts) Py_VISIT(part);
  return 0;
}

int places_clear(Places* self) {
  std::vector<PyObject*> parts;
  parts.swap(self->parts);
  self->bounds.clear();
  for (PyObject* part : parts) Py_DECREF(part);
  return 0;
}

void places_dealloc(Places* self) {
  PyObject_GC_UnTrack(self);
  places_clear(self);
  self->bounds.~vector();
  self->parts.~vector();
  self->core.~weak_ptr();
  Py_TYPE(self)->tp_free(self);
}

void enter(Places* self, uint64_t number, PyObject* part) {
  self->bounds.push_back(number);
  self->parts.push_back(Py_NewRef(part));
}

PyObject* places_enter(Places* self, PyObject* part) {
  uint64_t number = at::sequence_number::peek();
  enter(self, number, part);
  return PyLong_FromUnsignedLongLong(number);
}

PyObject* places_at(Places* self, PyObject* number) {
  uint64_t wanted = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred()) return nullptr;
  return Py_NewRef(part_at(self, wanted));
}

struct Trail;

// What the hooks of one root share. While the forward runs, it only knows its trail, which Python's collector sees;
// from then on it keeps the root. It is destroyed with the last node, on any thread.
struct Core {
  Trail* trail = nullptr;
  PyObject *root = nullptr, *places = nullptr;
  std::atomic<bool> is_removed{false};
  ~Core() {
    if (!root || !Py_IsInitialized()) return;  // at the interpreter's end, nothing is to be freed
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_XDECREF(root);
    Py_XDECREF(places);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
  }
};

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

PyObject* reach(const Core& core, int pass, uint64_t number);

struct RangeHook : ag::FunctionPreHook {
  std::shared_ptr<Core> core;
  explicit RangeHook(std::shared_ptr<Core> core) : core(std::move(core)) {}

  ag::variable_list operator()(const ag::variable_list& gradients) override {
    int pass = ag::get_current_graph_task_id();
    if (pass == -1 || core->is_removed) return gradients;
    auto node = ag::get_current_node();
    if (!node) return gradients;
    Gil gil;
    PyObject* result = reach(*core, pass, node->sequence_nr());
    if (!result) {  // Ctrl-C, for one
      python_error error;
      error.persist();
      throw error;
    }
    Py_DECREF(result);
    return gradients;
  }

  // Of compiled autograd, which runs its own code: constant or not, by PyTorch's version.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {}
};

}  // namespace
