// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/m2n_layout.h"

#include <algorithm>
#include <limits>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

struct WireDType {
  std::string_view name;  // torch's, or another that torch takes for it
  DType dtype;
};

constexpr WireDType kWireDTypes[] = {
    {"int8", DType::i8},
    {"uint8", DType::u8},
    {"float8_e4m3fn", DType::f8_e4m3},
    {"float8_e5m2", DType::f8_e5m2},
    {"float16", DType::f16},
    {"bfloat16", DType::bf16},
    {"int32", DType::i32},
    {"uint32", DType::u32},
    {"float32", DType::f32},
    {"int64", DType::i64},
    {"uint64", DType::u64},
    {"float64", DType::f64},
};
constexpr WireDType kAliases[] = {
    {"half", DType::f16}, {"float", DType::f32}, {"double", DType::f64},
    {"int", DType::i32},  {"long", DType::i64},
};
// Names of dtypes that the transport does not carry.
constexpr std::string_view kOtherDTypes[] = {
    "bool",
    "int16",
    "short",
    "uint16",
    "complex32",
    "complex64",
    "cfloat",
    "complex128",
    "cdouble",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "chalf",
};

std::string supported_names() {
  std::string names;
  for (const WireDType& dtype : kWireDTypes) {
    names += (names.empty() ? "" : ", ") + std::string(dtype.name);
  }
  return names;
}

std::string text_of(const std::vector<std::int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace

WireMesh wire_mesh(const std::vector<std::int64_t>& dims, std::int64_t start_rank) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  const bool are_positive = dims.size() == 2 && dims[0] > 0 && dims[1] > 0;
  if (!are_positive) {
    throw Error(ErrorCode::invalid_argument, "mesh: dims must be 2 positive ints")
        .with("dims", text_of(dims));
  }
  if (start_rank < 0) {
    throw Error(ErrorCode::invalid_argument, "mesh: start_rank is negative")
        .with("start_rank", start_rank);
  }
  if (dims[0] > kMax / dims[1] || start_rank > kMax - dims[0] * dims[1]) {
    throw Error(ErrorCode::invalid_argument, "mesh: too many ranks").with("dims", text_of(dims));
  }
  return {{static_cast<int>(dims[0]), static_cast<int>(dims[1])}, static_cast<int>(start_rank)};
}

void check_placements(const std::vector<int>& placements, std::string_view context) {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::invalid_argument, fmt::format("{} {}", context, what))
        .with("placements", fmt::format("[{}]", fmt::join(placements, ", ")));
  };
  if (placements.size() != 2) throw refuse("must have 2 entries");
  for (const int code : placements) {
    if (code < kReplicate) throw refuse(fmt::format("contains invalid placement code {}", code));
  }
  if (placements[0] == kReplicate && placements[1] == kReplicate) {
    throw refuse("shards no axis: a fully replicated tensor is carried as REPLICATED");
  }
  if (placements[0] != kReplicate && placements[1] != kReplicate) {
    throw refuse("shards both mesh axes");
  }
}

WireLayout wire_layout(const WireMesh& mesh, const Placements& placements,
                       std::string_view context) {
  if (!placements) return {{{mesh.size(), 1}, mesh.start_rank}, {kReplicate, 0}};
  check_placements(*placements, context);
  return {mesh, {(*placements)[0], (*placements)[1]}};
}

int shard_count(const WireLayout& layout) {
  for (std::size_t axis = 0; axis < 2; ++axis) {
    if (layout.placements[axis] != kReplicate) return layout.mesh.dims[axis];
  }
  return 1;
}

void check_layout(const WireLayout& layout, const std::vector<std::int64_t>& shape,
                  std::string_view side) {
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const int code = layout.placements[axis];
    if (code == kReplicate) continue;
    if (code >= static_cast<int>(shape.size())) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("plan: {} layout shards tensor dim {}, but the tensor has rank {}",
                              side, code, shape.size()))
          .with("shape", text_of(shape));
    }
    const std::int64_t size = shape[static_cast<std::size_t>(code)];
    if (size % layout.mesh.dims[axis] != 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("plan: {} tensor dim {} of size {} does not divide evenly over {} "
                              "ranks",
                              side, code, size, layout.mesh.dims[axis]))
          .with("shape", text_of(shape));
    }
  }
}

void check_plan_limits(const Reshard& reshard, std::string_view name) {
  const int sources = shard_count(reshard.source);
  const int destinations = shard_count(reshard.destination);
  if (destinations == 1 && sources > kSourceShardsMax) {
    throw Error(ErrorCode::limit_exceeded,
                fmt::format("plan: parameter '{}' has {} source shards for one destination, over "
                            "MAX_SOURCES={}",
                            name, sources, kSourceShardsMax));
  }
  if (sources == 1 && destinations > kDestinationShardsMax) {
    throw Error(ErrorCode::limit_exceeded,
                fmt::format("plan: parameter '{}' has {} destination shards of one source, over "
                            "MAX_TARGETS={}",
                            name, destinations, kDestinationShardsMax));
  }
}

DType transferable_dtype(std::string_view name, std::string_view dtype_name,
                         const std::vector<std::int64_t>& shape) {
  const auto find = [&](const auto& table) -> std::optional<DType> {
    for (const WireDType& row : table) {
      if (row.name == dtype_name) return row.dtype;
    }
    return std::nullopt;
  };
  std::optional<DType> dtype = find(kWireDTypes);
  if (!dtype) dtype = find(kAliases);
  if (!dtype) {
    const bool is_dtype = std::find(std::begin(kOtherDTypes), std::end(kOtherDTypes), dtype_name) !=
                          std::end(kOtherDTypes);
    throw Error(ErrorCode::unsupported,
                fmt::format("plan: parameter '{}' has {} {}", name,
                            is_dtype ? "the dtype" : "no dtype: not one is named", dtype_name))
        .with("Supported", supported_names());
  }
  if (shape.empty() || shape.size() > kTensorDimsMax) {
    throw Error(ErrorCode::unsupported,
                fmt::format("plan: parameter '{}' has rank {}", name, shape.size()))
        .with("shape", text_of(shape))
        .with("Supported", "rank 1 to 3");
  }
  return *dtype;
}

}  // namespace crossmesh::profiles
