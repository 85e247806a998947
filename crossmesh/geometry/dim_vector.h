// SPDX-License-Identifier: Apache-2.0
// A few integers, one per dimension: a shape, an index, strides, counts. A value
// that never allocates, so that geometry costs nothing per tensor name.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace crossmesh {

// Dimensions of a refined index space, at most.
inline constexpr int kDimsMax = 8;

class DimVector {
 public:
  DimVector() = default;
  DimVector(std::initializer_list<std::int64_t> values)
      : DimVector(std::span<const std::int64_t>(values.begin(), values.size())) {}
  // Requires: at most kDimsMax values.
  explicit DimVector(std::span<const std::int64_t> values)
      : size_(static_cast<int>(values.size())) {
    assert(values.size() <= kDimsMax);
    std::copy(values.begin(), values.end(), values_.begin());
  }
  static DimVector filled(int size, std::int64_t value) {
    DimVector v;
    for (int i = 0; i < size; ++i) v.push_back(value);
    return v;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == kDimsMax; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t back() const { return (*this)[size_ - 1]; }

  void push_back(std::int64_t value) {
    assert(!full());
    values_[static_cast<std::size_t>(size_++)] = value;
  }
  void pop_back() { values_[static_cast<std::size_t>(--size_)] = 0; }

  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  std::span<const std::int64_t> span() const { return {begin(), static_cast<std::size_t>(size_)}; }

  // Unused entries stay zero, so that whole values compare.
  bool operator==(const DimVector&) const = default;

 private:
  std::array<std::int64_t, kDimsMax> values_{};
  int size_ = 0;
};

using Shape = DimVector;
using Index = DimVector;
using Strides = DimVector;

// `[2, 3]`
std::string to_string(const DimVector& vector);

}  // namespace crossmesh
