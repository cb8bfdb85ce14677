// What is known of nodes, found by their addresses: open addressing in one piece of memory, which for the few hundred
// nodes of a forward costs a third of the standard library's tables.
#pragma once

#include "places.h"

namespace {

struct Entry {
  const ag::Node* node = nullptr;
  // Where a node with a hook needs no walk on from it, its number, else 0.
  uint64_t known = 0;
  bool is_hooked = false, is_seen = false, is_reached = false;
};

class Table {
  std::vector<Entry> entries = std::vector<Entry>(32);
  size_t used = 0;

  Entry& place_of(const ag::Node* node) {
    size_t mask = entries.size() - 1;
    size_t at = (reinterpret_cast<uintptr_t>(node) * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (entries[at].node && entries[at].node != node) at = (at + 1) & mask;
    return entries[at];
  }

  void grow() {
    std::vector<Entry> old(entries.size() * 4);
    old.swap(entries);
    for (const auto& one : old)
      if (one.node) place_of(one.node) = one;
  }

 public:
  // The entry of a node, a new one if there is none; it moves when another is added.
  Entry& operator[](const ag::Node* node) {
    Entry& found = place_of(node);
    if (found.node) return found;
    if (++used * 2 > entries.size()) grow();
    Entry& added = place_of(node);
    added.node = node;
    return added;
  }

  Entry find(const ag::Node* node) { return place_of(node); }

  bool see(const ag::Node* node) { return !std::exchange((*this)[node].is_seen, true); }

  void forget_seen() {
    for (auto& one : entries) one.is_seen = false;
  }
};

}  // namespace
