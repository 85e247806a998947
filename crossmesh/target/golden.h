// SPDX-License-Identifier: Apache-2.0
// For tests: recorded parameters, loaders and tensors as the request that resolve takes.
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "crossmesh/target/resolve.h"
#include "tests/golden.h"

namespace crossmesh::testing {

using nlohmann::json;

// A line of a recorded file, which prints as its name.
struct Line {
  json text;
};
inline void PrintTo(const Line& line, std::ostream* out) { *out << line.text["id"]; }

// The lines of golden_resolution.jsonl of these kinds.
inline std::vector<Line> resolution_lines(const std::vector<std::string>& kinds) {
  std::vector<Line> lines;
  std::istringstream text(test_data("golden_resolution.jsonl"));
  for (std::string row; std::getline(text, row);) {
    json line = json::parse(row);
    const std::string kind = line["what"];
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) lines.push_back({line});
  }
  return lines;
}

inline std::string line_name(const ::testing::TestParamInfo<Line>& info) {
  std::string name = info.param.text["id"];
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

template <typename Value>
std::optional<Value> optional_at(const json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return std::nullopt;
  return object[key].get<Value>();
}

inline Shape shape_from(const json& sizes) { return Shape(sizes.get<std::vector<std::int64_t>>()); }

inline LiveParameter live_parameter(const json& row) {
  LiveParameter result;
  result.name = row["name"];
  if (row.contains("alias_of")) {
    result.alias_of = row["alias_of"];
    return result;
  }
  result.dtype = dtype_from_name(row["dtype"].get<std::string>()).value();
  result.shape = shape_from(row["shape"]);
  result.is_contiguous = row["contiguous"];
  const json& loader = row["loader"];
  result.loader.kind = loader_kind_from_name(loader["kind"].get<std::string>()).value();
  result.loader.is_bound = loader.value("bound", false);
  result.loader.owner_tp_size = optional_at<int>(loader, "owner_tp_size");
  const json& attrs = row["attrs"];
  result.marks = {
      .output_dim = optional_at<std::int64_t>(attrs, "output_dim"),
      .input_dim = optional_at<std::int64_t>(attrs, "input_dim"),
      .packed_dim = optional_at<std::int64_t>(attrs, "packed_dim"),
      .packed_factor = optional_at<std::int64_t>(attrs, "packed_factor"),
      .marlin_tile_size = optional_at<std::int64_t>(attrs, "marlin_tile_size"),
      .needs_scalar_to_array = optional_at<bool>(attrs, "needs_scalar_to_array").value_or(false),
      .is_sharded_weight = optional_at<bool>(attrs, "is_sharded_weight").value_or(false),
      .is_transposed = optional_at<bool>(attrs, "is_transposed").value_or(false)};
  return result;
}

// The parts of a request that both recorded kinds have; closed by names, as the recorder did.
inline ResolveRequest resolve_request(const json& input) {
  ResolveRequest request;
  for (const json& row : input["live_parameters"]) {
    request.parameters.push_back(live_parameter(row));
  }
  for (const json& module : input["module_types"]) {
    request.modules.push_back({module["path"], module["type"]});
  }
  request.distrusted_types = {"vllm.model_executor.models.gpt2.GPT2Model"};
  request.closure = Closure::names;
  return request;
}

inline json destinations_json(const Resolution& resolution) {
  json result = json::array();
  for (const Destination& destination : resolution.destinations) {
    json placements;
    if (destination.shard_dim) placements = {-1, *destination.shard_dim};
    result.push_back({{"name", destination.name},
                      {"direct", destination.is_direct},
                      {"placements", placements}});
  }
  return result;
}

}  // namespace crossmesh::testing
