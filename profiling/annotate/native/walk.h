// The nodes of one outermost call while its forward runs, found and hooked without a Python object for each. This
// does what trail.py and graph.py do, and says no more of why.
#pragma once

#include "table.h"

namespace {

struct Found {
  c10::SmallVector<std::pair<NodePtr, uint64_t>, 4> nodes;
};

struct Known {
  std::shared_ptr<Core> core;
  Table table;
  std::vector<NodePtr> kept, entries, below;
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
  Entry& entry = known.table[node.get()];
  entry.is_hooked = true;
  entry.known = number;
  known.kept.push_back(node);
  node->add_tensor_pre_hook(std::make_unique<RangeHook>(known.core));
}

void lead_to(Known& known, const NodePtr& node) {
  uint64_t number = known.table.find(node.get()).known;
  if (!number) {
    known.entries.push_back(node);
  } else if (number < known.oldest_number) {
    known.oldest_number = number;
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
    if (!known.table.find(node.get()).is_hooked) put_hook(known, node, 0);
  }
  return any_is_there;
}

using Nodes = c10::SmallVector<NodePtr, 4>;

// The nodes of a leaf's arguments; false if it changed one, or got more than plain tensors and values.
bool older_nodes(Known& known, PyObject* args, uint64_t start, Nodes& nodes) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(args); at++) {
    PyObject* value = PyTuple_GET_ITEM(args, at);
    if (is_without(value)) continue;
    NodePtr node;
    if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != python.tensor) return false;
    if (!node_of(THPVariable_Unpack(value), node)) return false;
    if (!node) continue;
    if (node->sequence_nr() >= start && !known.table.find(node.get()).is_hooked) return false;
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
  c10::SmallVector<const ag::Node*, 32> todo{first.get()};
  known.table.see(first.get());
  for (size_t at = 0; at < todo.size(); at++) {
    for (const auto& edge : todo[at]->next_edges()) {
      const auto& next = edge.function;
      if (!next) continue;
      uint64_t its = next->sequence_nr();
      if (its < low) {
        known.entries.push_back(next);
      } else if (its < first_number && known.table.see(next.get())) {
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
    Entry entry = known.table[node.get()];
    if (entry.is_reached) continue;
    known.table[node.get()].is_reached = true;
    known.kept.push_back(node);
    uint64_t number = node->sequence_nr();
    if (number < self->start) {
      known.below.push_back(node);
    } else if (number < end) {
      if (!entry.is_hooked) put_hook(known, node, 0);
      if (number < known.oldest_number) {
        known.oldest_number = number;
        known.oldest = node;
      }
      if (!entry.known && !entry.is_seen) walk_within(self, node, number);
    }
  }
  known.entries.clear();
}

}  // namespace
