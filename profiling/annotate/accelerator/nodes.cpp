// The nodes of one outermost call, kept and hooked without a Python object for each: trail.py in C++.
//
// `Places` is what the backward needs: which part was innermost from which number of autograd's on. `Trail` is what
// is known of the nodes while the forward runs. Hooks hold a `Core`, which holds the Python `Root` and its `Places`.
#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <unordered_map>
#include <unordered_set>
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
  PyObject *reach, *items, *part, *tensor, *parameter;
  std::vector<PyTypeObject*> without;
} python;
PyObject *name_parameters, *name_running;

// ---- Places: the parts by number -------------------------------------------------------------------------------

struct Core;
extern PyTypeObject places_type;

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

// ---- The hook of all nodes -------------------------------------------------------------------------------------

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
    Py_DECREF(root);
    Py_DECREF(places);
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

// ---- Trail: the nodes of a forward -----------------------------------------------------------------------------

struct Found {
  std::vector<std::pair<NodePtr, uint64_t>> nodes;
};

struct Known {
  std::shared_ptr<Core> core;
  // Nodes with a hook, each with its number where there is no need to walk on from it, else 0.
  std::unordered_map<const ag::Node*, uint64_t> hooked;
  std::vector<NodePtr> kept, entries, below;
  std::unordered_set<const ag::Node*> reached, seen;
  NodePtr oldest;
  uint64_t oldest_number = LEAF;
};

struct Trail {
  PyObject_HEAD
  PyObject* places;
  uint64_t start;
  Known* known;
};

Places* places_of(Trail* self) { return reinterpret_cast<Places*>(self->places); }

void put_hook(Known& known, const NodePtr& node, uint64_t number) {
  known.hooked[node.get()] = number;
  known.kept.push_back(node);
  node->add_tensor_pre_hook(std::make_unique<RangeHook>(known.core));
}

void lead_to(Known& known, const NodePtr& node) {
  auto hooked = known.hooked.find(node.get());
  if (hooked == known.hooked.end() || !hooked->second) {
    known.entries.push_back(node);
  } else if (hooked->second < known.oldest_number) {
    known.oldest_number = hooked->second;
    known.oldest = node;
  }
}

// The node of a tensor; none for a view that autograd forbids to use after an in-place operation.
bool node_of(const at::Tensor& tensor, NodePtr& node) {
  try {
    node = tensor.grad_fn();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void add_node(const at::Tensor& tensor, uint64_t start, Found& found) {
  NodePtr node;
  if (!node_of(tensor, node) || !node || node->sequence_nr() < start) return;
  found.nodes.emplace_back(node, node->sequence_nr());
  if (!tensor.is_view()) return;
  // An in-place operation on a returned view replaces the view's node: the one behind it counts too.
  for (const auto& edge : node->next_edges()) {
    if (edge.function && edge.function->sequence_nr() >= start && edge.function->sequence_nr() < LEAF)
      found.nodes.emplace_back(edge.function, edge.function->sequence_nr());
  }
}

bool is_without(PyObject* value) {
  if (value == Py_None) return true;
  auto* kind = Py_TYPE(value);
  return std::find(python.without.begin(), python.without.end(), kind) != python.without.end();
}

bool collect(PyObject* value, int depth, uint64_t start, Found& found);

bool collect_items(PyObject* value, int depth, uint64_t start, Found& found) {
  PyObject* items = PyObject_CallOneArg(python.items, value);  // a list, made here: nobody else changes it
  if (!items) return false;
  bool is_fine = true;
  for (Py_ssize_t at = 0; is_fine && at < PyList_GET_SIZE(items); at++)
    is_fine = collect(PyList_GET_ITEM(items, at), depth, start, found);
  Py_DECREF(items);
  return is_fine;
}

// Adds the node of every tensor in `value`; false for an error of Python's.
bool collect(PyObject* value, int depth, uint64_t start, Found& found) {
  if (THPVariable_CheckExact(value) || (!is_without(value) && THPVariable_Check(value))) {
    add_node(THPVariable_Unpack(value), start, found);
    return true;
  }
  if (!depth || is_without(value)) return true;
  if (PyTuple_CheckExact(value)) {
    Py_ssize_t count = std::min<Py_ssize_t>(PyTuple_GET_SIZE(value), MAX_ITEMS);
    for (Py_ssize_t at = 0; at < count; at++)
      if (!collect(PyTuple_GET_ITEM(value, at), depth - 1, start, found)) return false;
    return true;
  }
  return collect_items(value, depth - 1, start, found);
}

bool collect_arguments(PyObject* values, uint64_t start, Found& found) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(values); at++)
    if (!collect(PyTuple_GET_ITEM(values, at), 1, start, found)) return false;
  return true;
}

bool add_found(Known& known, const Found& found) {
  bool any_is_there = false;
  uint64_t end = at::sequence_number::peek();
  for (const auto& [node, number] : found.nodes) {
    if (number >= end) continue;
    any_is_there = true;
    lead_to(known, node);
    if (!known.hooked.count(node.get())) put_hook(known, node, 0);
  }
  return any_is_there;
}

// The nodes of a leaf's arguments; false if it changed one, or got more than plain tensors and values.
bool older_nodes(Known& known, PyObject* args, uint64_t start, std::vector<NodePtr>& nodes) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(args); at++) {
    PyObject* value = PyTuple_GET_ITEM(args, at);
    if (is_without(value)) continue;
    NodePtr node;
    if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != python.tensor) return false;
    if (!node_of(THPVariable_Unpack(value), node)) return false;
    if (!node) continue;
    if (!known.hooked.count(node.get()) && node->sequence_nr() >= start) return false;
    nodes.push_back(std::move(node));
  }
  return true;
}

// Whether all parameters of a module are just that, and not computed by the program; -1 for an error.
int are_plain(PyObject* module) {
  PyObject* parameters = PyObject_GetAttr(module, name_parameters);
  if (!parameters) return -1;
  int result = PyDict_Check(parameters);
  PyObject *key, *weight;
  Py_ssize_t at = 0;
  while (result && PyDict_Next(parameters, &at, &key, &weight))
    if (weight != Py_None && reinterpret_cast<PyObject*>(Py_TYPE(weight)) != python.parameter) result = 0;
  Py_DECREF(parameters);
  return result;
}

void walk_within(Trail* self, const NodePtr& first, uint64_t first_number) {
  Known& known = *self->known;
  const auto& bounds = places_of(self)->bounds;
  auto above = std::upper_bound(bounds.begin(), bounds.end(), first_number) - bounds.begin();
  uint64_t low = bounds[above ? above - 1 : bounds.size() - 1];
  std::vector<const ag::Node*> todo{first.get()};
  known.seen.insert(first.get());
  for (size_t at = 0; at < todo.size(); at++) {
    for (const auto& edge : todo[at]->next_edges()) {
      const auto& next = edge.function;
      if (!next) continue;
      uint64_t its = next->sequence_nr();
      if (its < low) {
        known.entries.push_back(next);
      } else if (its < first_number && known.seen.insert(next.get()).second) {
        todo.push_back(next.get());
        if (its < known.oldest_number) {
          known.oldest_number = its;
          known.oldest = next;
        }
      }
    }
  }
}

void walk(Trail* self, uint64_t end) {
  Known& known = *self->known;
  for (size_t at = 0; at < known.entries.size(); at++) {
    NodePtr node = known.entries[at];  // a copy: the list grows
    if (!known.reached.insert(node.get()).second) continue;
    known.kept.push_back(node);
    uint64_t number = node->sequence_nr();
    if (number < self->start) {
      known.below.push_back(node);
    } else if (number < end) {
      auto hooked = known.hooked.find(node.get());
      bool is_known = hooked != known.hooked.end() && hooked->second;
      if (hooked == known.hooked.end()) put_hook(known, node, 0);
      if (number < known.oldest_number) {
        known.oldest_number = number;
        known.oldest = node;
      }
      if (!is_known && !known.seen.count(node.get())) walk_within(self, node, number);
    }
  }
  known.entries.clear();
}

// Calls engine.reach(part, pass, is_sure) for the part of the node with this number.
PyObject* reach(const Core& core, int pass, uint64_t number) {
  if (core.trail) walk(core.trail, LEAF);
  PyObject* places = core.trail ? core.trail->places : core.places;
  if (!places) Py_RETURN_NONE;  // of a forward that was interrupted
  PyObject* part = Py_NewRef(part_at(reinterpret_cast<Places*>(places), number));
  auto* chosen = ag::get_current_graph_task_exec_info();
  PyObject* id = PyLong_FromLong(pass);
  PyObject* args[] = {part, id, !chosen || chosen->empty() ? Py_True : Py_False};
  PyObject* result = id ? PyObject_Vectorcall(python.reach, args, 3, nullptr) : nullptr;
  Py_XDECREF(id);
  Py_DECREF(part);
  return result;
}

// ---- Trail, as Python sees it ----------------------------------------------------------------------------------

PyObject* trail_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* places;
  unsigned long long start;
  if (!PyArg_ParseTuple(args, "O!K", &places_type, &places, &start)) return nullptr;
  auto* self = reinterpret_cast<Trail*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->places = Py_NewRef(places);
  self->start = start;
  self->known = new Known();
  self->known->core = std::make_shared<Core>();
  self->known->core->trail = self;
  reinterpret_cast<Places*>(places)->core = self->known->core;
  return reinterpret_cast<PyObject*>(self);
}

// The forward has ended: from now on its nodes keep the root.
PyObject* trail_release(Trail* self, PyObject* root) {
  Core& core = *self->known->core;
  if (core.trail) {
    core.trail = nullptr;
    core.root = Py_NewRef(root);
    core.places = Py_NewRef(self->places);
  }
  Py_RETURN_NONE;
}

int trail_traverse(Trail* self, visitproc visit, void* arg) {
  Py_VISIT(self->places);
  return 0;
}

void trail_dealloc(Trail* self) {
  PyObject_GC_UnTrack(self);
  if (self->known->core->trail == self) self->known->core->trail = nullptr;
  delete self->known;
  Py_DECREF(self->places);
  Py_TYPE(self)->tp_free(self);
}

bool is_number(PyObject* value, uint64_t& number) {
  number = PyLong_AsUnsignedLongLong(value);
  return !PyErr_Occurred();
}

// Notes the nodes of what a call returned or changed: 1 and 0 for whether there are any, -1 for an error.
int add_call(Known& known, PyObject* output, PyObject* args, uint64_t start) {
  Found found;
  if (!collect(output, MAX_DEPTH, start, found) || !collect_arguments(args, start, found)) return -1;
  return add_found(known, found);
}

// add(output, args, start)
PyObject* trail_add(Trail* self, PyObject* const* args, Py_ssize_t count) {
  uint64_t start;
  if (count != 3 || !PyTuple_Check(args[1])) return PyErr_Format(PyExc_TypeError, "a call is needed");
  if (!is_number(args[2], start)) return nullptr;
  int result = add_call(*self->known, args[0], args[1], start);
  return result < 0 ? nullptr : PyBool_FromLong(result);
}

bool is_exact_tensor(PyObject* value) { return reinterpret_cast<PyObject*>(Py_TYPE(value)) == python.tensor; }

// Notes the nodes of a leaf: 1 and 0 for whether it has any, -1 for an error.
int add_leaf(Known& known, PyObject* value, PyObject* args, PyObject* module, uint64_t start) {
  if (at::impl::PythonTorchFunctionTLS::stack_len() || !is_exact_tensor(value))
    return add_call(known, value, args, start);
  const at::Tensor& output = THPVariable_Unpack(value);
  NodePtr top;
  std::vector<NodePtr> below;
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

// leaf(label, around, start, output, args, module)
PyObject* trail_leaf(Trail* self, PyObject* const* args, Py_ssize_t count) {
  uint64_t start, end = at::sequence_number::peek();
  if (count != 6 || !PyTuple_Check(args[4])) return PyErr_Format(PyExc_TypeError, "a call of a leaf is needed");
  if (!is_number(args[2], start)) return nullptr;
  if (start == end) Py_RETURN_TRUE;
  PyObject* part = PyObject_Vectorcall(python.part, args, 2, nullptr);
  if (!part || PyObject_SetAttr(part, name_running, Py_False)) {
    Py_XDECREF(part);
    return nullptr;
  }
  enter(places_of(self), start, part);
  enter(places_of(self), end, args[1]);
  Py_DECREF(part);
  int result = add_leaf(*self->known, args[3], args[4], args[5], start);
  return result < 0 ? nullptr : PyBool_FromLong(result);
}

void free_found(PyObject* capsule) { delete static_cast<Found*>(PyCapsule_GetPointer(capsule, nullptr)); }

PyObject* trail_find(Trail*, PyObject* const* args, Py_ssize_t count) {
  uint64_t start;
  if (count != 3) return PyErr_Format(PyExc_TypeError, "value, depth, start");
  if (!is_number(args[2], start)) return nullptr;
  auto found = std::make_unique<Found>();
  if (!collect(args[0], static_cast<int>(PyLong_AsLong(args[1])), start, *found)) return nullptr;
  return PyCapsule_New(found.release(), nullptr, free_found);
}

PyObject* trail_add_nodes(Trail* self, PyObject* capsules) {
  bool any_is_there = false;
  for (Py_ssize_t at = 0; PyList_Check(capsules) && at < PyList_GET_SIZE(capsules); at++) {
    auto* found = static_cast<Found*>(PyCapsule_GetPointer(PyList_GET_ITEM(capsules, at), nullptr));
    if (!found) return nullptr;
    any_is_there |= add_found(*self->known, *found);
  }
  return PyBool_FromLong(any_is_there);
}

PyObject* trail_walk(Trail* self, PyObject* number) {
  uint64_t end;
  if (!is_number(number, end)) return nullptr;
  walk(self, end);
  Py_RETURN_NONE;
}

PyObject* as_list(const std::vector<NodePtr>& nodes) {
  PyObject* list = PyList_New(0);
  for (const auto& node : nodes) {
    PyObject* object = list ? ag::functionToPyObject(node) : nullptr;
    if (!object || PyList_Append(list, object)) Py_CLEAR(list);
    Py_XDECREF(object);
  }
  return list;
}

PyObject* trail_last(Trail* self, PyObject*) {
  Known& known = *self->known;
  std::vector<NodePtr> last;
  if (known.oldest) {
    known.seen.clear();
    walk_within(self, NodePtr(known.oldest), known.oldest_number);
    for (const auto& edge : known.oldest->next_edges())
      if (edge.function && edge.function->sequence_nr() == LEAF) last.push_back(edge.function);
    if (last.empty()) last.push_back(known.oldest);
  }
  return as_list(last);
}

PyObject* trail_below(Trail* self, void*) { return as_list(self->known->below); }

PyObject* places_remove(Places* self, PyObject*) {
  if (auto core = self->core.lock()) core->is_removed = true;
  Py_RETURN_NONE;
}

// ---- The module ------------------------------------------------------------------------------------------------

#define METHOD(name, function, flags) {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), flags, nullptr}

PyMethodDef places_methods[] = {
    METHOD("enter", places_enter, METH_O),
    METHOD("at", places_at, METH_O), METHOD("remove", places_remove, METH_NOARGS), {}};
PyMethodDef trail_methods[] = {
    METHOD("add", trail_add, METH_FASTCALL), METHOD("leaf", trail_leaf, METH_FASTCALL),
    METHOD("find", trail_find, METH_FASTCALL), METHOD("add_nodes", trail_add_nodes, METH_O),
    METHOD("walk", trail_walk, METH_O), METHOD("last", trail_last, METH_NOARGS),
    METHOD("release_to", trail_release, METH_O), {}};
PyGetSetDef trail_properties[] = {
    {"below", reinterpret_cast<getter>(trail_below), nullptr, nullptr, nullptr}, {}};

PyTypeObject places_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject trail_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool make_types() {
  places_type.tp_name = "nvtx_kernels_nodes.Places";
  places_type.tp_basicsize = sizeof(Places);
  places_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  places_type.tp_new = places_new;
  places_type.tp_dealloc = reinterpret_cast<destructor>(places_dealloc);
  places_type.tp_traverse = reinterpret_cast<traverseproc>(places_traverse);
  places_type.tp_clear = reinterpret_cast<inquiry>(places_clear);
  places_type.tp_methods = places_methods;
  trail_type.tp_name = "nvtx_kernels_nodes.Trail";
  trail_type.tp_basicsize = sizeof(Trail);
  trail_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE;
  trail_type.tp_new = trail_new;
  trail_type.tp_dealloc = reinterpret_cast<destructor>(trail_dealloc);
  trail_type.tp_traverse = reinterpret_cast<traverseproc>(trail_traverse);
  trail_type.tp_methods = trail_methods;
  trail_type.tp_getset = trail_properties;
  return !PyType_Ready(&places_type) && !PyType_Ready(&trail_type);
}

// prepare(reach, items, Part, without, Tensor, Parameter): what this calls, and the classes that it knows.
PyObject* prepare(PyObject*, PyObject* args) {
  PyObject* kinds;
  if (!PyArg_ParseTuple(args, "OOOOOO", &python.reach, &python.items, &python.part, &kinds, &python.tensor, &python.parameter))
    return nullptr;
  for (PyObject* one : {python.reach, python.items, python.part, kinds, python.tensor, python.parameter}) Py_INCREF(one);
  PyObject* list = PySequence_List(kinds);
  if (!list) return nullptr;
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(list); at++)
    python.without.push_back(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(list, at)));
  Py_DECREF(list);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {METHOD("prepare", prepare, METH_VARARGS), {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "nvtx_kernels_nodes", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_nvtx_kernels_nodes() {
  name_running = PyUnicode_InternFromString("running");
  name_parameters = PyUnicode_InternFromString("_parameters");
  PyObject* module = make_types() ? PyModule_Create(&definition) : nullptr;
  if (!module) return nullptr;
  if (PyModule_AddObjectRef(module, "Places", reinterpret_cast<PyObject*>(&places_type)) ||
      PyModule_AddObjectRef(module, "Trail", reinterpret_cast<PyObject*>(&trail_type)))
    Py_CLEAR(module);
  return module;
}
