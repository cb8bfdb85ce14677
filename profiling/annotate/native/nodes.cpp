// The module for Python: `Places` and `Trail`, as engine.py and trail.py have them.
#include "prepare.h"

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

// add(output, args, start)
PyObject* trail_add(Trail* self, PyObject* const* args, Py_ssize_t count) {
  uint64_t start;
  if (count != 3 || !PyTuple_Check(args[1])) return PyErr_Format(PyExc_TypeError, "a call is needed");
  if (!is_number(args[2], start)) return nullptr;
  int result = add_call(*self->known, args[0], args[1], start);
  return result < 0 ? nullptr : PyBool_FromLong(result);
}

// leaf(label, around, start, output, args, module)
PyObject* trail_leaf(Trail* self, PyObject* const* args, Py_ssize_t count) {
  uint64_t start;
  if (count != 6 || !PyTuple_Check(args[4])) return PyErr_Format(PyExc_TypeError, "a call of a leaf is needed");
  if (!is_number(args[2], start)) return nullptr;
  int result = leaf(self, args[0], args[1], start, args[3], args[4], args[5]);
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
    known.table.forget_seen();
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

PyMethodDef functions[] = {
    METHOD("prepare", prepare, METH_O), METHOD("prepare_calls", prepare_calls, METH_O),
    METHOD("call", call, METH_FASTCALL), METHOD("open_in", stack_open_in, METH_FASTCALL),
    METHOD("pop", stack_pop, METH_O), METHOD("close", stack_close, METH_O), {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "nvtx_kernels_nodes", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_nvtx_kernels_nodes() {
  PyObject* module = make_keys() && make_types() ? PyModule_Create(&definition) : nullptr;
  if (!module) return nullptr;
  if (PyModule_AddObjectRef(module, "Places", reinterpret_cast<PyObject*>(&places_type)) ||
      PyModule_AddObjectRef(module, "Trail", reinterpret_cast<PyObject*>(&trail_type)))
    Py_CLEAR(module);
  return module;
}
