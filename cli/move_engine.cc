// SPDX-License-Identifier: Apache-2.0
#include "cli/move_engine.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "cli/expert_slots.h"
#include "cli/plain_mesh.h"
#include "cli/versions.h"
#include "crossmesh/base/error.h"
#include "crossmesh/catalog/write.h"
#include "crossmesh/session/place.h"

namespace crossmesh::cli {
namespace {

// What parameters hold before the first update; no weight that is checked can pass by it, since
// every element changes with each version.
constexpr int kPoison = 0xC9;

// Writes `value_bits` to each element of a region, the plain way: it is done once.
void fill_region(std::byte* parameter, const StridedRegion& region, std::int64_t width,
                 std::uint64_t value_bits, int dim = 0, std::int64_t offset = 0) {
  if (dim == region.shape.size()) {
    std::memcpy(parameter + (region.view.offset + offset) * width, &value_bits,
                static_cast<std::size_t>(width));
    return;
  }
  for (std::int64_t i = 0; i < region.shape[dim]; ++i) {
    fill_region(parameter, region, width, value_bits, dim + 1,
                offset + i * region.view.strides[dim]);
  }
}

}  // namespace

PlainEngine plain_engine(const Model& model, const Request& request, int engine_rank) {
  PlainEngine engine = plain_engine_of_rank(parse_spec(request.engine), engine_rank);
  engine.config_json = model.config_text;
  engine.has_stacked_experts = std::ranges::any_of(model.catalog.tensors, [](auto& tensor) {
    return tensor.name.ends_with(".experts.gate_up_proj");
  });
  engine.expert_of_slot = read_expert_slots(request.expert_slots);
  engine.dtype = request.parameter_dtype.value_or(model.config.dtype);
  return engine;
}

PlainCheckpoint plain_checkpoint_at(const Model& model, std::uint64_t version) {
  PlainCheckpoint plain;
  for (const TensorInfo& tensor : model.catalog.tensors) {
    plain.tensors[tensor.name] = {tensor.dtype, tensor.shape};
  }
  plain.read_rows = [&model, version](std::string_view name, std::int64_t first_row,
                                      std::int64_t row_count, std::span<std::byte> rows) {
    const std::span<const std::byte> bytes = model.checkpoint->bytes(name);
    const TensorInfo& tensor = model.catalog.tensors[*model.checkpoint->find(name)];
    if (rows.empty()) return;
    const std::int64_t row_bytes = static_cast<std::int64_t>(rows.size()) / row_count;
    const std::int64_t at = first_row * row_bytes;
    std::memcpy(rows.data(), bytes.data() + at, rows.size());
    apply_version(name, tensor.dtype, at / byte_size(tensor.dtype), rows, version);
  };
  return plain;
}

MoveEngine::MoveEngine(const Model& model, const Layout& layout, int rank, PlainEngine plain)
    : model_(model), layout_(layout), rank_(rank), loader_(plain) {
  const Placement placement = place_parameters(layout, rank);
  memory_.places = placement.places;
  bytes_held_ = placement.bytes_held;
  if (placement.bytes == 0) {
    memory_.buffers.push_back({});
    return;
  }
  arena_ = reserve_private(placement.bytes);
  std::memset(arena_.data(), kPoison, static_cast<std::size_t>(arena_.bytes()));
  memory_.buffers.push_back({arena_.data(), placement.bytes, -1, 0});
  fill_reserves();
}

void MoveEngine::fill_reserves() {
  for (std::size_t p = 0; p < layout_.parameters.size(); ++p) {
    const Parameter& parameter = layout_.parameters[p];
    const ParameterClass& geometry =
        layout_.parameter_classes[static_cast<std::size_t>(parameter.parameter_class)];
    const Binding& binding = layout_.bindings[static_cast<std::size_t>(parameter.binding)];
    const int role = binding.role_of_rank[static_cast<std::size_t>(rank_)];
    for (const Reserve& reserve : geometry.reserves) {
      if (reserve.kind != Reserve::Kind::fill || reserve.role != role) continue;
      fill_region(arena_.data() + memory_.places[p].offset_bytes, reserve.region,
                  byte_size(geometry.dtype), reserve.value_bits);
    }
  }
}

std::span<std::byte> MoveEngine::bytes_of_parameter(const std::string& name) const {
  for (std::size_t p = 0; p < layout_.parameters.size(); ++p) {
    const int parameter = static_cast<int>(p);
    if (layout_.parameters[p].name != name || !has_parameter(layout_, rank_, parameter)) continue;
    return {arena_.data() + memory_.places[p].offset_bytes,
            static_cast<std::size_t>(parameter_bytes(layout_, rank_, parameter))};
  }
  throw Error(ErrorCode::mismatch, "check: the layout lacks a parameter that the engine has")
      .with("parameter", name)
      .with("engine", rank_);
}

void MoveEngine::load(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  const PlainCheckpoint one =
      whole_tensor_in_memory(tensor.name, {tensor.dtype, tensor.shape}, bytes);
  for (const PlainParameter& parameter : loader_.parameters()) {
    if (parameter.storage != parameter.name) continue;
    const bool fed = std::any_of(parameter.parts.begin(), parameter.parts.end(),
                                 [&](const PlainPart& part) { return part.tensor == tensor.name; });
    if (fed) loader_.load(parameter.name, tensor.name, one, bytes_of_parameter(parameter.name));
  }
}

EngineCheck MoveEngine::check(std::uint64_t version) const {
  const PlainCheckpoint checkpoint = plain_checkpoint_at(model_, version);
  EngineCheck result;
  for (const PlainParameter& parameter : loader_.parameters()) {
    if (parameter.storage != parameter.name) continue;
    const PlainComparison found =
        loader_.compare(parameter.name, checkpoint, bytes_of_parameter(parameter.name));
    result.elements_checked += found.elements_checked;
    if (found.first_different < 0) continue;
    ++result.parameters_wrong;
    if (!result.first_fault.empty()) continue;
    result.first_fault = fmt::format(
        "engine {}: parameter {} differs at element {}, which {} feeds", rank_, parameter.name,
        found.first_different, found.tensor.empty() ? "the padding" : found.tensor);
  }
  return result;
}

void MoveEngine::dump(const std::filesystem::path& file) const {
  std::vector<TensorInfo> tensors;
  for (const PlainParameter& parameter : loader_.parameters()) {
    if (parameter.storage == parameter.name) {
      tensors.push_back({parameter.name, parameter.dtype, parameter.shape});
    }
  }
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    throw Error(ErrorCode::io_failed, "dump: the folder cannot be made")
        .with("folder", file.parent_path().string())
        .with("system", error.message());
  }
  FileWriter writer(file, tensors);
  for (const TensorInfo& tensor : tensors) writer.append(bytes_of_parameter(tensor.name));
  writer.seal();
  writer.publish();
}

}  // namespace crossmesh::cli
