// SPDX-License-Identifier: Apache-2.0
// For tests of chains: calls read from JSON, and an oracle of what they show. The oracle is a list
// of byte numbers in row-major order and knows no stride, so it shares no step with the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "crossmesh/target/chain.h"
#include "crossmesh/target/op.h"

namespace crossmesh::testing {

using nlohmann::json;

inline std::optional<OpKind> kind_from_name(const std::string& name) {
  for (int i = 0; i < kOpKindCount; ++i) {
    if (name_of(static_cast<OpKind>(i)) == name) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

inline void add_value(Op& op, const json& value) {
  const auto add_items = [&](const json& items) {
    for (const json& item : items) add_value(op, item);
  };
  if (value.is_null()) {
    op.add_none();
  } else if (value.is_boolean()) {
    op.add(Token::Kind::boolean);
  } else if (value.is_number_integer()) {
    op.add_integer(value.get<std::int64_t>());
  } else if (value.is_number()) {
    op.add(Token::Kind::number);
  } else if (value.is_string()) {
    op.add(Token::Kind::text);
  } else if (value.is_array()) {
    op.add_list(static_cast<std::int64_t>(value.size()));
    add_items(value);
  } else if (value.contains("slice")) {
    op.add_slice();
    add_items(value["slice"]);
  } else if (value.contains("tuple")) {
    op.add_tuple(static_cast<std::int64_t>(value["tuple"].size()));
    add_items(value["tuple"]);
  } else if (value.contains("ellipsis")) {
    op.add_ellipsis();
  } else if (value.contains("tensor")) {
    op.add(Token::Kind::tensor);
  } else if (value.contains("dtype")) {
    op.add_dtype(dtype_from_name(value["dtype"].get<std::string>()).value());
  } else if (value.contains("memory_format")) {
    for (int i = 0; i < 4; ++i) {
      const MemoryFormat format = static_cast<MemoryFormat>(i);
      if (value["memory_format"] == name_of(format)) op.add_memory_format(format);
    }
  }
}

// `["narrow", [0, 1], {"length": 2}]`
inline Op op_from_json(const json& call) {
  Op op(kind_from_name(call[0].get<std::string>()).value());
  for (const json& value : call[1]) add_value(op, value);
  for (const auto& [name, value] : call[2].items()) {
    op.add_keyword(keyword_from_name(name));
    add_value(op, value);
  }
  return op;
}

// -- The oracle ----------------------------------------------------------------------------------

using Numbers = std::vector<std::int64_t>;

inline std::int64_t product(const Numbers& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

struct ListTensor {
  Numbers sizes;
  std::int64_t item_bytes = 1;
  Numbers bytes;  // numbers of the whole tensor's bytes, element by element, row-major
};

inline ListTensor whole_list(const Numbers& sizes, std::int64_t item_bytes) {
  ListTensor list{sizes, item_bytes, {}};
  for (std::int64_t i = 0; i < product(sizes) * item_bytes; ++i) list.bytes.push_back(i);
  return list;
}

inline Numbers index_of(std::int64_t flat, const Numbers& sizes) {
  Numbers index(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = flat % sizes[d];
    flat /= sizes[d];
  }
  return index;
}

inline std::int64_t flat_of(const Numbers& index, const Numbers& sizes) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) flat = flat * sizes[d] + index[d];
  return flat;
}

// The list of `sizes` whose element at an index is the one of `list` at `source_of(index)`.
inline ListTensor gathered(const ListTensor& list, const Numbers& sizes,
                           const std::function<Numbers(const Numbers&)>& source_of) {
  ListTensor result{sizes, list.item_bytes, {}};
  for (std::int64_t i = 0; i < product(sizes); ++i) {
    const std::int64_t from = flat_of(source_of(index_of(i, sizes)), list.sizes);
    for (std::int64_t b = 0; b < list.item_bytes; ++b) {
      result.bytes.push_back(list.bytes[static_cast<std::size_t>(from * list.item_bytes + b)]);
    }
  }
  return result;
}

inline std::size_t place_of(std::int64_t dim, std::size_t dims) {
  return static_cast<std::size_t>(
      dim < 0 ? dim + static_cast<std::int64_t>(std::max<std::size_t>(dims, 1)) : dim);
}

inline ListTensor with_step(const ListTensor& list, std::size_t dim, std::int64_t start,
                            std::int64_t count, std::int64_t step) {
  ListTensor result{list.sizes, list.item_bytes, {}};
  result.sizes[dim] = count;
  std::int64_t outer = 1;
  std::int64_t inner_bytes = list.item_bytes;
  for (std::size_t d = 0; d < dim; ++d) outer *= list.sizes[d];
  for (std::size_t d = dim + 1; d < list.sizes.size(); ++d) inner_bytes *= list.sizes[d];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto from = list.bytes.begin() + (o * list.sizes[dim] + start + i * step) * inner_bytes;
      result.bytes.insert(result.bytes.end(), from, from + inner_bytes);
    }
  }
  return result;
}

inline ListTensor resized(ListTensor list, Numbers sizes) {
  const std::int64_t count = product(list.sizes);
  std::int64_t known = 1;
  for (const std::int64_t size : sizes) known *= size < 0 ? 1 : size;
  for (std::int64_t& size : sizes) {
    if (size < 0) size = count / known;
  }
  list.sizes = sizes;
  return list;
}

inline ListTensor permuted(const ListTensor& list, const Numbers& dims) {
  Numbers sizes;
  for (const std::int64_t dim : dims) sizes.push_back(list.sizes[static_cast<std::size_t>(dim)]);
  return gathered(list, sizes, [&](const Numbers& index) {
    Numbers from(index.size());
    for (std::size_t d = 0; d < dims.size(); ++d)
      from[static_cast<std::size_t>(dims[d])] = index[d];
    return from;
  });
}

inline ListTensor indexed(const ListTensor& list, const json& index) {
  const json items = index.is_object() && index.contains("tuple") ? index["tuple"] : json{index};
  std::int64_t named = 0;
  for (const json& item : items) {
    named += item.is_number() || (item.is_object() && item.contains("slice")) ? 1 : 0;
  }
  const std::int64_t dims = static_cast<std::int64_t>(list.sizes.size());
  ListTensor result = list;
  std::size_t dim = 0;
  for (const json& item : items) {
    if (item.is_null()) {
      result.sizes.insert(result.sizes.begin() + static_cast<std::ptrdiff_t>(dim++), 1);
    } else if (item.is_number()) {
      const std::int64_t extent = result.sizes[dim];
      const std::int64_t at = item.get<std::int64_t>();
      result = with_step(result, dim, at < 0 ? at + extent : at, 1, 1);
      result.sizes.erase(result.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
    } else if (item.contains("ellipsis")) {
      dim += static_cast<std::size_t>(dims - named);
    } else {
      const std::int64_t extent = result.sizes[dim];
      const auto bound = [&](std::size_t i, std::int64_t fallback) {
        if (item["slice"][i].is_null()) return fallback;
        const std::int64_t value = item["slice"][i].get<std::int64_t>();
        return std::clamp<std::int64_t>(value < 0 ? value + extent : value, 0, extent);
      };
      const std::int64_t start = bound(0, 0);
      const std::int64_t stop = std::max(start, bound(1, extent));
      const std::int64_t step =
          item["slice"][2].is_null() ? 1 : item["slice"][2].get<std::int64_t>();
      result = with_step(result, dim++, start, (stop - start + step - 1) / step, step);
    }
  }
  return result;
}

// The arguments by position, also those given by keyword.
inline json positional(const json& call) {
  static const std::map<std::string, std::vector<std::string>> kParameters = {
      {"narrow", {"dim", "start", "length"}},
      {"transpose", {"dim0", "dim1"}},
      {"flatten", {"start_dim", "end_dim"}},
      {"chunk", {"chunks", "dim"}},
      {"split", {"split_size", "dim"}},
      {"select", {"dim", "index"}},
      {"unbind", {"dim"}},
      {"unsqueeze", {"dim"}},
      {"squeeze", {"dim"}},
      {"permute", {"dims"}},
  };
  json args = call[1];
  const auto known = kParameters.find(call[0].get<std::string>());
  if (known == kParameters.end()) return args;
  for (std::size_t i = args.size(); i < known->second.size(); ++i) {
    if (!call[2].contains(known->second[i])) break;
    args.push_back(call[2][known->second[i]]);
  }
  return args;
}

inline std::vector<ListTensor> list_parts(const ListTensor& list, const json& call) {
  const json args = positional(call);
  const auto arg = [&](std::size_t i, std::int64_t fallback) {
    return i < args.size() ? args[i].get<std::int64_t>() : fallback;
  };
  std::vector<ListTensor> parts;
  if (call[0] == "unbind") {
    const std::size_t dim = place_of(arg(0, 0), list.sizes.size());
    for (std::int64_t i = 0; i < list.sizes[dim]; ++i) {
      parts.push_back(with_step(list, dim, i, 1, 1));
      parts.back().sizes.erase(parts.back().sizes.begin() + static_cast<std::ptrdiff_t>(dim));
    }
    return parts;
  }
  const std::size_t dim = place_of(arg(1, 0), list.sizes.size());
  const std::int64_t extent = list.sizes[dim];
  std::int64_t length = call[0] == "chunk" ? (extent + arg(0, 1) - 1) / arg(0, 1) : arg(0, 1);
  std::int64_t count = length == 0 ? 1 : std::max<std::int64_t>(1, (extent + length - 1) / length);
  if (extent == 0 && call[0] == "chunk") count = arg(0, 1);
  for (std::int64_t i = 0; i < count; ++i) {
    parts.push_back(with_step(list, dim, i * length, std::min(length, extent - i * length), 1));
  }
  return parts;
}

inline Numbers squeezed_sizes(const Numbers& sizes, const std::optional<Numbers>& dims) {
  std::vector<bool> named(std::max<std::size_t>(sizes.size(), 1), !dims);
  for (const std::int64_t d : dims.value_or(Numbers())) named[place_of(d, sizes.size())] = true;
  Numbers result;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (!named[d] || sizes[d] != 1) result.push_back(sizes[d]);
  }
  return result;
}

inline Numbers flattened_sizes(const Numbers& sizes, std::size_t first, std::size_t last) {
  Numbers result;
  std::int64_t merged = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (d < first || d > last) result.push_back(sizes[d]);
    if (d >= first && d <= last) merged *= sizes[d];
    if (d == last) result.push_back(merged);
  }
  return result;
}

// What a call shows. Requires: the call is legal.
inline ListTensor list_after(const ListTensor& list, const json& call) {
  const std::string name = call[0];
  const json args = positional(call);
  const std::size_t dims = list.sizes.size();
  const auto dim = [&](std::size_t i, std::int64_t fallback) {
    return place_of(i < args.size() ? args[i].get<std::int64_t>() : fallback, dims);
  };
  const auto numbers = [&] {
    const json& items = args.size() == 1 && args[0].is_object()  ? args[0]["tuple"]
                        : args.size() == 1 && args[0].is_array() ? args[0]
                                                                 : args;
    return items.get<Numbers>();
  };
  if (name == "narrow") {
    const std::int64_t start = args[1].get<std::int64_t>();
    return with_step(list, dim(0, 0), start < 0 ? start + list.sizes[dim(0, 0)] : start,
                     args[2].get<std::int64_t>(), 1);
  }
  if (name == "view" && args[0].is_object() && args[0].contains("dtype")) {
    ListTensor result = list;
    result.item_bytes = byte_size(dtype_from_name(args[0]["dtype"].get<std::string>()).value());
    if (result.item_bytes != list.item_bytes) {
      result.sizes.back() = list.sizes.back() * list.item_bytes / result.item_bytes;
    }
    return result;
  }
  if (name == "view" || name == "reshape") return resized(list, numbers());
  if (name == "__getitem__") return indexed(list, args[0]);
  if (name == "select") {
    const std::int64_t index = args[1].get<std::int64_t>();
    const std::size_t at = dim(0, 0);
    ListTensor result = with_step(list, at, index < 0 ? index + list.sizes[at] : index, 1, 1);
    result.sizes.erase(result.sizes.begin() + static_cast<std::ptrdiff_t>(at));
    return result;
  }
  ListTensor result = list;
  if (name == "unsqueeze") {
    const std::size_t at = place_of(args[0].get<std::int64_t>(), dims + 1);
    result.sizes.insert(result.sizes.begin() + static_cast<std::ptrdiff_t>(at), 1);
  } else if (name == "squeeze") {
    result.sizes =
        squeezed_sizes(list.sizes, args.empty() ? std::nullopt : std::optional(numbers()));
  } else if (name == "transpose" || name == "t" || name == "permute") {
    Numbers order;
    for (std::size_t d = 0; d < dims; ++d) order.push_back(static_cast<std::int64_t>(d));
    if (name == "t" && dims == 2) std::swap(order[0], order[1]);
    if (name == "transpose" && dims > 0) std::swap(order[dim(0, 0)], order[dim(1, 0)]);
    if (name == "permute") {
      order = numbers();
      for (std::int64_t& d : order) d = static_cast<std::int64_t>(place_of(d, dims));
    }
    result = permuted(list, order);
  } else if (name == "flatten") {
    if (dims == 0) return resized(list, {1});
    result.sizes = flattened_sizes(list.sizes, dim(0, 0), dim(1, -1));
  } else if (name != "contiguous") {
    throw std::invalid_argument(name);
  }
  return result;
}

// -- What the library says, as lists -------------------------------------------------------------

inline Numbers numbers(const DimVector& vector) { return {vector.begin(), vector.end()}; }

// Places in the storage, element by element.
inline Numbers places(const StridedTensor& tensor) {
  Numbers result;
  const Numbers sizes = numbers(tensor.sizes);
  for (std::int64_t i = 0; i < product(sizes); ++i) {
    const Numbers index = index_of(i, sizes);
    std::int64_t place = tensor.offset;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      place += index[d] * tensor.strides[static_cast<int>(d)];
    }
    result.push_back(place);
  }
  return result;
}

// The byte numbers that a map shows, storage by storage.
inline Numbers bytes_of_map(const ElementMap& map) {
  Numbers storage = whole_list(numbers(map.tensor.sizes), byte_size(map.tensor.dtype)).bytes;
  std::vector<StridedTensor> views = map.copies;
  views.push_back(map.result);
  for (const StridedTensor& view : views) {
    const std::int64_t item_bytes = byte_size(view.dtype);
    Numbers read;
    for (const std::int64_t place : places(view)) {
      for (std::int64_t b = 0; b < item_bytes; ++b) {
        read.push_back(storage.at(static_cast<std::size_t>(place * item_bytes + b)));
      }
    }
    storage = read;
  }
  return storage;
}

}  // namespace crossmesh::testing
