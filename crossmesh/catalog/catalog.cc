// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/catalog/detail/text.h"

namespace crossmesh {

using catalog_detail::joined;
using catalog_detail::printable;

std::optional<std::int64_t> count_elements(std::span<const std::int64_t> shape) {
  std::int64_t product = 1;
  bool is_empty = false;
  for (const std::int64_t extent : shape) {
    if (extent == 0) {
      is_empty = true;
    } else if (product > kElementsMax / extent) {
      return std::nullopt;
    } else {
      product *= extent;
    }
  }
  return is_empty ? 0 : product;
}

std::int64_t element_count(const TensorInfo& tensor) {
  const auto count = count_elements(tensor.shape);
  if (count) return *count;
  throw Error(ErrorCode::limit_exceeded, "count elements: a tensor has too many elements")
      .with("tensor", printable(tensor.name))
      .with("shape", fmt::format("[{}]", joined(tensor.shape)))
      .with("elements_max", kElementsMax);
}

std::int64_t byte_count(const TensorInfo& tensor) {
  const auto bytes = bytes_of(tensor.dtype, element_count(tensor));
  if (bytes) return *bytes;
  throw Error(ErrorCode::invalid_argument, "count bytes: a tensor does not end on a byte")
      .with("tensor", printable(tensor.name))
      .with("dtype", name_of(tensor.dtype))
      .with("shape", fmt::format("[{}]", joined(tensor.shape)));
}

std::int64_t byte_count(const Catalog& catalog) {
  std::int64_t total = 0;
  for (const TensorInfo& tensor : catalog.tensors) total = checked_add(total, byte_count(tensor));
  return total;
}

std::string explain(const Catalog& catalog) {
  std::string text;
  std::int64_t elements = 0;
  for (const TensorInfo& tensor : catalog.tensors) {
    fmt::format_to(std::back_inserter(text), "{}  {}  [{}]\n", printable(tensor.name),
                   name_of(tensor.dtype), joined(tensor.shape));
    elements = checked_add(elements, element_count(tensor));
  }
  fmt::format_to(std::back_inserter(text), "{} tensors, {} elements, {} bytes\n",
                 catalog.tensors.size(), elements, byte_count(catalog));
  return text;
}

std::optional<std::size_t> find(const Catalog& catalog, std::string_view name) {
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (catalog.tensors[i].name == name) return i;
  }
  return std::nullopt;
}

// Sorted by hash, then by name, so that names with one hash cost a comparison and no more.
CatalogIndex::CatalogIndex(const Catalog& catalog) : catalog_(&catalog) {
  const auto& tensors = catalog.tensors;
  entries_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    entries_.push_back(
        {std::hash<std::string_view>{}(tensors[i].name), static_cast<std::uint32_t>(i)});
  }
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const int order = tensors[a.tensor].name.compare(tensors[b.tensor].name);
    return order != 0 ? order < 0 : a.tensor < b.tensor;
  });
}

std::optional<std::size_t> CatalogIndex::find(std::string_view name) const {
  const std::uint64_t hash = std::hash<std::string_view>{}(name);
  const auto& tensors = catalog_->tensors;
  const auto at = std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.hash < hash || (entry.hash == hash && tensors[entry.tensor].name < name);
  });
  if (at == entries_.end() || tensors[at->tensor].name != name) return std::nullopt;
  return at->tensor;
}

std::optional<std::size_t> find_duplicate(const Catalog& catalog) {
  const CatalogIndex index(catalog);
  std::optional<std::size_t> first;
  for (std::size_t i = 1; i < index.entries_.size(); ++i) {
    const auto& before = index.entries_[i - 1];
    const auto& entry = index.entries_[i];
    if (before.hash != entry.hash) continue;
    if (catalog.tensors[before.tensor].name != catalog.tensors[entry.tensor].name) continue;
    if (!first || entry.tensor < *first) first = entry.tensor;
  }
  return first;
}

}  // namespace crossmesh
