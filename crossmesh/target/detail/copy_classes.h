// SPDX-License-Identifier: Apache-2.0
// Recorded copies as classes of a layout. Copies that differ only in where they land are lowered
// once, and have one class.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "crossmesh/layout/interner.h"
#include "crossmesh/target/bake.h"

namespace crossmesh::detail {

// A copy as a class, its pieces counted from where it lands; or why it is none.
struct LoweredClass {
  int layout_class = -1;
  DType dtype = DType::u8;
  std::string reason;
};

class CopyClasses {
 public:
  CopyClasses(const ChainBook& book, Interner& interner) : book_(book), interner_(interner) {}

  // Requires: `event` is a copy. Throws: invalid_argument where torch refuses it.
  const LoweredClass& find(const BakeEvent& event);

 private:
  struct Key {
    int chain = 0;
    DType dtype = DType::u8;
    Shape shape;
    Strides strides;

    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  const ChainBook& book_;
  Interner& interner_;
  std::unordered_map<Key, LoweredClass, KeyHash> known_;
};

}  // namespace crossmesh::detail
