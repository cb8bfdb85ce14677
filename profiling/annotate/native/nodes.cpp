// The module for Python: `Places` and `Trail`, as engine.py and trail.py have them.
#include "walk.h"

namespace {

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
    if (core.is_removed) Py_RETURN_NONE;
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

// Nodes that live on keep their hooks, which from now on do and keep nothing.
PyObject* places_remove(Places* self, PyObject*) {
  if (auto core = self->core.lock()) {
    core->is_removed = true;
    Py_CLEAR(core->root);
    Py_CLEAR(core->places);
  }
  Py_RETURN_NONE;
}

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
  python.without.clear();
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
