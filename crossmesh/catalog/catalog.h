// SPDX-License-Identifier: Apache-2.0
// Which tensors a checkpoint holds: their names, dtypes and whole shapes, in the order
// in which their bytes lie. It knows no file, no rank and no byte of data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"

namespace crossmesh {

// The largest extent, element count or offset that is accepted from a file: what every
// JSON reader represents exactly.
inline constexpr std::int64_t kElementsMax = (std::int64_t{1} << 53) - 1;

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  bool operator==(const TensorInfo&) const = default;
};

// The elements of a tensor of this shape: 1 for rank 0, 0 where any extent is 0. Nothing when
// the product of the other extents passes kElementsMax, so that strides fit too.
// Requires: no extent is negative.
std::optional<std::int64_t> count_elements(std::span<const std::int64_t> shape);

// Throws: limit_exceeded when there are more than kElementsMax.
std::int64_t element_count(const TensorInfo& tensor);

// Bytes of the packed tensor.
// Throws: limit_exceeded as element_count; invalid_argument when a sub-byte tensor does not
// end on a byte.
std::int64_t byte_count(const TensorInfo& tensor);

struct Catalog {
  std::vector<TensorInfo> tensors;
  bool operator==(const Catalog&) const = default;
};

// The sum of byte_count over all tensors.
std::int64_t byte_count(const Catalog& catalog);

// One line `name  BF16  [2, 3]` per tensor, in order, then the totals.
std::string explain(const Catalog& catalog);

// The place of a tensor in `catalog.tensors`. It scans: for many look-ups use CatalogIndex.
std::optional<std::size_t> find(const Catalog& catalog, std::string_view name);

// The place of the first tensor whose name an earlier one has.
std::optional<std::size_t> find_duplicate(const Catalog& catalog);

// Finds tensors by name in O(log n), names chosen by an adversary included.
// Requires: `catalog` outlives the index, and is neither moved nor changed.
class CatalogIndex {
 public:
  explicit CatalogIndex(const Catalog& catalog);
  std::optional<std::size_t> find(std::string_view name) const;

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t tensor;
  };
  const Catalog* catalog_;
  std::vector<Entry> entries_;

  friend std::optional<std::size_t> find_duplicate(const Catalog& catalog);
};

}  // namespace crossmesh
