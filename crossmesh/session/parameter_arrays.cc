// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/parameter_arrays.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/session/place.h"

namespace crossmesh {
namespace {

// Strides along dimensions of one element, and of no elements at all, say nothing.
bool lie_alike(const Shape& shape, const Strides& a, const Strides& b) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1 && a[d] != b[d]) return false;
  }
  return true;
}

bool holds_bits_of(DType array, DType parameter) {
  switch (array) {
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return bit_size(array) == bit_size(parameter);
    default:
      return array == parameter;
  }
}

class Gatherer {
 public:
  Gatherer(const Layout& layout, int rank, const ParameterArrays& arrays, MemoryUse use)
      : layout_(layout), rank_(rank), arrays_(arrays), use_(use) {
    memory_.buffers = arrays.enclosing;
    memory_.places.resize(layout.parameters.size());
  }

  ParameterMemory gather() {
    std::set<std::string_view> used;
    for (int p = 0; p < static_cast<int>(layout_.parameters.size()); ++p) {
      if (!has_parameter(layout_, rank_, p)) continue;
      used.insert(place(p));
    }
    for (const auto& [name, array] : arrays_.array_by_name) {
      if (used.contains(name)) continue;
      throw Error(ErrorCode::invalid_argument, "memory: no parameter of this rank has this name")
          .with("array", name)
          .with("rank", rank_);
    }
    if (use_ == MemoryUse::take) check_apart();
    return std::move(memory_);
  }

 private:
  const Parameter& parameter(int p) const {
    return layout_.parameters[static_cast<std::size_t>(p)];
  }
  ParameterPlace& place_of(int p) { return memory_.places[static_cast<std::size_t>(p)]; }

  Error refusal(ErrorCode code, const std::string& what, int p) const {
    return Error(code, "memory: " + what).with("parameter", parameter(p).name).with("rank", rank_);
  }

  // Returns the name.
  std::string_view place(int p) {
    const Parameter& named = parameter(p);
    const auto found = arrays_.array_by_name.find(named.name);
    const bool is_tied = named.storage != p && has_parameter(layout_, rank_, named.storage);
    if (found == arrays_.array_by_name.end()) {
      if (!is_tied) throw refusal(ErrorCode::invalid_argument, "a parameter has no array", p);
      place_of(p) = place_of(named.storage);
      return named.name;
    }
    const ParameterArray& array = found->second;
    check(p, array);
    if (is_tied) {
      if (data_of_[named.storage] != array.data) {
        throw refusal(ErrorCode::mismatch, "tied parameters do not share an array", p)
            .with("tied to", parameter(named.storage).name);
      }
      place_of(p) = place_of(named.storage);
    } else {
      data_of_[p] = array.data;
      place_of(p) = place_of_bytes(p, array.data);
    }
    return named.name;
  }

  void check(int p, const ParameterArray& array) const {
    const DType dtype =
        layout_.parameter_classes[static_cast<std::size_t>(parameter(p).parameter_class)].dtype;
    const Shape& shape = local_shape(layout_, rank_, p);
    const Strides& strides = local_strides(layout_, rank_, p);
    if (!holds_bits_of(array.dtype, dtype)) {
      throw refusal(ErrorCode::mismatch, "an array has another dtype", p)
          .with("layout", name_of(dtype))
          .with("array", name_of(array.dtype));
    }
    if (array.shape != shape) {
      throw refusal(ErrorCode::mismatch, "an array has another shape", p)
          .with("layout", to_string(shape))
          .with("array", to_string(array.shape));
    }
    if (!lie_alike(shape, array.strides, strides)) {
      throw refusal(ErrorCode::mismatch, "an array has other strides", p)
          .with("shape", to_string(shape))
          .with("layout", to_string(strides))
          .with("array", to_string(array.strides))
          .hint("give the parameter's own memory; a copy would not be seen by the engine");
    }
    if (!array.data && parameter_bytes(layout_, rank_, p) > 0) {
      throw refusal(ErrorCode::invalid_argument, "an array has no address", p);
    }
    if (use_ == MemoryUse::take && !array.is_writable) {
      throw refusal(ErrorCode::invalid_argument, "an array to take into is read-only", p);
    }
  }

  ParameterPlace place_of_bytes(int p, std::byte* data) {
    const std::int64_t bytes = parameter_bytes(layout_, rank_, p);
    const std::less_equal<const std::byte*> not_after;
    for (std::size_t b = 0; b < arrays_.enclosing.size() && bytes > 0; ++b) {
      const Buffer& buffer = arrays_.enclosing[b];
      if (not_after(buffer.data, data) && not_after(data + bytes, buffer.data + buffer.size_bytes))
        return {static_cast<int>(b), data - buffer.data};
    }
    if (bytes > 0) spans_.push_back({p, data, bytes});
    memory_.buffers.push_back({data, bytes, -1, 0});
    return {static_cast<int>(memory_.buffers.size()) - 1, 0};
  }

  // What overlaps would hold the bytes of whoever came last.
  void check_apart() {
    for (int p = 0; p < static_cast<int>(memory_.places.size()); ++p) {
      const ParameterPlace place = place_of(p);
      if (place.buffer < 0 || static_cast<std::size_t>(place.buffer) >= arrays_.enclosing.size()) {
        continue;
      }
      const std::int64_t bytes = parameter_bytes(layout_, rank_, p);
      if (bytes > 0 && data_of_.contains(p)) spans_.push_back({p, data_of_[p], bytes});
    }
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) {
      return std::less<const std::byte*>()(a.data, b.data);
    });
    for (std::size_t i = 1; i < spans_.size(); ++i) {
      const Span& before = spans_[i - 1];
      if (std::less_equal<const std::byte*>()(before.data + before.bytes, spans_[i].data)) continue;
      throw refusal(ErrorCode::invalid_argument, "arrays to take into overlap", spans_[i].parameter)
          .with("other", parameter(before.parameter).name);
    }
  }

  struct Span {
    int parameter = 0;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };

  const Layout& layout_;
  int rank_;
  const ParameterArrays& arrays_;
  MemoryUse use_;
  ParameterMemory memory_;
  std::map<int, std::byte*> data_of_;
  std::vector<Span> spans_;
};

}  // namespace

ParameterMemory memory_of_arrays(const Layout& layout, int rank, const ParameterArrays& arrays,
                                 MemoryUse use) {
  return Gatherer(layout, rank, arrays, use).gather();
}

}  // namespace crossmesh
