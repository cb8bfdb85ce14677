// Hears from PyTorch which autograd node runs now, and of which part it is: what nodes.py does with hooks on all nodes.
#include <Python.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t MOST = 1 << 17;  // entries per thread, as in places.py

// From a number on, a part was innermost. No two entries have the same `serial`.
struct Entry {
  uint64_t number, serial;
  PyObject* part;
};

// Which part was innermost from which number on, on the thread that made the table.
struct Table {
  PyObject_HEAD
  uint64_t thread;
  std::deque<Entry> entries;
};

// Guards all tables. Who has the GIL may take it, and not the other way round; no code of Python's runs under it.
std::shared_mutex lock;
std::unordered_map<uint64_t, Table*> table_of;  // by PyTorch's number of the thread, which is never given again
uint64_t last_serial = 0;

PyObject* reach = nullptr;  // engine.reach(part, pass, is_sure)
uint64_t watches = 0;       // how often that was set
at::CallbackHandle handle = 0;

// What this thread reached last: it is not reached again for each of its nodes.
struct Reached {
  uint64_t serial, watches;
  int pass;
  bool operator==(const Reached& other) const {
    return serial == other.serial && watches == other.watches && pass == other.pass;
  }
};
thread_local Reached last_reached{0, 0, -1};

// The entry of a node; {0, 0, nullptr} where there is none. To be called under the lock.
Entry entry_of(uint64_t thread, uint64_t number) {
  auto table = table_of.find(thread);
  if (table == table_of.end()) return {};
  const auto& entries = table->second->entries;
  auto next = std::upper_bound(entries.begin(), entries.end(), number,
                               [](uint64_t sought, const Entry& entry) { return sought < entry.number; });
  return next == entries.begin() ? Entry{} : *std::prev(next);
}

int raise_again(void* error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), static_cast<PyObject*>(error));
  Py_DECREF(static_cast<PyObject*>(error));
  return -1;
}

// PyTorch lets no error out of a callback: what a signal handler raised in here is raised in the main thread soon after.
void pass_on_error() {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  if (Py_AddPendingCall(raise_again, error)) Py_XDECREF(error);
}

std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction& node) {
  if (node.seqNr() < 0) return nullptr;  // a leaf runs right after the node that made its gradient
  uint64_t thread = node.forwardThreadId(), number = node.seqNr();
  Reached now{0, 0, torch::autograd::get_current_graph_task_id()};
  {
    std::shared_lock reading(lock);
    now.serial = entry_of(thread, number).serial, now.watches = watches;
  }
  if (now == last_reached) return nullptr;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* part = nullptr;
  {
    std::shared_lock reading(lock);  // again: only with the GIL the part can be kept
    part = entry_of(thread, number).part;
  }
  part = Py_NewRef(part ? part : Py_None);
  if (PyObject* function = Py_XNewRef(reach)) {
    last_reached = now;
    PyObject* done = PyObject_CallFunction(function, "OiO", part, now.pass, Py_True);
    if (!done) pass_on_error();
    Py_XDECREF(done);
    Py_DECREF(function);
  }
  Py_DECREF(part);
  PyGILState_Release(gil);
  return nullptr;
}

PyObject* new_table(PyTypeObject* type, PyObject*, PyObject*) {
  auto* table = reinterpret_cast<Table*>(type->tp_alloc(type, 0));
  if (!table) return nullptr;
  new (&table->entries) std::deque<Entry>;
  table->thread = at::RecordFunction::currentThreadId();
  std::unique_lock writing(lock);
  table_of[table->thread] = table;
  return reinterpret_cast<PyObject*>(table);
}

void delete_table(PyObject* self) {
  auto* table = reinterpret_cast<Table*>(self);
  std::deque<Entry> entries;
  {
    std::unique_lock writing(lock);
    auto registered = table_of.find(table->thread);
    if (registered != table_of.end() && registered->second == table) table_of.erase(registered);
    entries.swap(table->entries);
  }
  for (const Entry& entry : entries) Py_DECREF(entry.part);
  table->entries.~deque();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// Take the first entries out, and let go of their parts.
void drop(Table* table, size_t count) {
  std::vector<PyObject*> parts;
  {
    std::unique_lock writing(lock);
    for (auto& entries = table->entries; count && !entries.empty(); --count, entries.pop_front())
      parts.push_back(entries.front().part);
  }
  for (PyObject* part : parts) Py_DECREF(part);
}

// enter(part): it is the innermost from this thread's next number on.
PyObject* enter(PyObject* self, PyObject* part) {
  auto* table = reinterpret_cast<Table*>(self);
  uint64_t number = at::sequence_number::peek();
  PyObject* replaced = nullptr;
  if (!table->entries.empty() && table->entries.back().part == part) Py_RETURN_NONE;
  Py_INCREF(part);
  {
    std::unique_lock writing(lock);
    Entry entry{number, ++last_serial, part};
    if (!table->entries.empty() && table->entries.back().number == number) {
      replaced = std::exchange(table->entries.back(), entry).part;
    } else {
      table->entries.push_back(entry);
    }
  }
  Py_XDECREF(replaced);
  if (table->entries.size() > MOST) drop(table, MOST / 2);
  Py_RETURN_NONE;
}

// forget(number, recent): drop the entries below a number, except for the latest ones.
PyObject* forget(PyObject* self, PyObject* args) {
  unsigned long long number;
  Py_ssize_t recent, count = 0;
  if (!PyArg_ParseTuple(args, "Kn", &number, &recent)) return nullptr;
  auto* table = reinterpret_cast<Table*>(self);
  {
    std::shared_lock reading(lock);
    Py_ssize_t most = static_cast<Py_ssize_t>(table->entries.size()) - recent;
    while (count < most && table->entries[count].number < number) ++count;
  }
  drop(table, count);
  Py_RETURN_NONE;
}

Py_ssize_t length(PyObject* self) { return reinterpret_cast<Table*>(self)->entries.size(); }

// watch(reach or None): call it, or nothing, before nodes of another part than the last.
PyObject* watch(PyObject*, PyObject* function) {
  if (handle) at::removeCallback(std::exchange(handle, 0));
  Py_XSETREF(reach, function == Py_None ? nullptr : Py_NewRef(function));
  {
    std::unique_lock writing(lock);
    ++watches;
  }
  if (reach) {
    at::RecordFunctionCallback callback(on_node);
    handle = at::addGlobalCallback(callback.scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  Py_RETURN_NONE;
}

// In a forked child, no thread is left to release a lock that another thread held.
PyObject* after_fork(PyObject*, PyObject*) {
  new (&lock) std::shared_mutex;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"enter", enter, METH_O, nullptr}, {"forget", forget, METH_VARARGS, nullptr}, {}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_table)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(delete_table)},
                       {Py_sq_length, reinterpret_cast<void*>(length)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec table_spec = {"nvtx_kernels_nodes.Table", sizeof(Table), 0, Py_TPFLAGS_DEFAULT, slots};
PyMethodDef functions[] = {
    {"watch", watch, METH_O, nullptr}, {"after_fork", after_fork, METH_NOARGS, nullptr}, {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "nvtx_kernels_nodes", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_nvtx_kernels_nodes() {
  PyObject* module = PyModule_Create(&definition);
  PyObject* type = module ? PyType_FromSpec(&table_spec) : nullptr;
  if (!type || PyModule_AddObject(module, "Table", type)) return nullptr;
  return module;
}
