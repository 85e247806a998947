// SPDX-License-Identifier: Apache-2.0
#include "cli/compare_runs.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "cli/bounded_input.h"
#include "cli/expert_slots.h"
#include "cli/model.h"
#include "cli/move_engine.h"
#include "cli/plain_cast.h"
#include "cli/plain_loader.h"
#include "cli/run_folder.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

constexpr int kConfigDepthMax = 64;

ElementText element_text(DType dtype, Bytes element) {
  ElementText text{"", "0x"};
  for (std::size_t i = element.size(); i > 0; --i) {
    text.hex += fmt::format("{:02x}", static_cast<unsigned>(element[i - 1]));
  }
  if (dtype == DType::f32 || is_castable(dtype, DType::f32)) {
    float value = 0;
    cast_plainly(dtype, element, DType::f32, std::as_writable_bytes(std::span(&value, 1)));
    text.value = fmt::format("{:.9g}", value);
  }
  return text;
}

// Counts the elements that differ; nothing where none does. `a` and `b` are as long.
std::optional<ParameterDifference> compare_elements(DType dtype, Bytes a, Bytes b,
                                                    bool any_nan_is_equal) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return std::nullopt;
  const auto size = static_cast<std::size_t>(byte_size(dtype));
  ParameterDifference found;
  found.elements = static_cast<std::int64_t>(a.size() / size);
  for (std::size_t at = 0; at < a.size(); at += size) {
    if (std::memcmp(a.data() + at, b.data() + at, size) == 0) continue;
    if (any_nan_is_equal && is_nan(dtype, a.data() + at) && is_nan(dtype, b.data() + at)) continue;
    if (found.elements_different++ > 0) continue;
    found.first_different = static_cast<std::int64_t>(at / size);
    found.a = element_text(dtype, a.subspan(at, size));
    found.b = element_text(dtype, b.subspan(at, size));
  }
  if (found.elements_different == 0) return std::nullopt;
  return found;
}

// Adds what a comparison of one parameter found.
void add(RunComparison& result, int engine, const TensorInfo& parameter,
         std::optional<ParameterDifference> difference) {
  ++result.parameters;
  result.elements += element_count(parameter);
  if (!difference) return;
  difference->engine = engine;
  difference->parameter = parameter.name;
  difference->shape = parameter.shape;
  difference->dtype = parameter.dtype;
  result.differences.push_back(std::move(*difference));
}

// `BF16 [4, 8]`
std::string form_text(const TensorInfo& parameter) {
  return fmt::format("{} [{}]", name_of(parameter.dtype), fmt::join(parameter.shape, ", "));
}

struct Named {
  std::string what;  // `A`
  const Catalog& catalog;
};

// Both sides must have the same parameters, in whatever order.
void check_parameters(int engine, const Named& one, const Named& other) {
  const CatalogIndex index(other.catalog);
  for (const TensorInfo& parameter : one.catalog.tensors) {
    const auto found = index.find(parameter.name);
    const auto refuse = [&](std::string_view what) {
      return Error(ErrorCode::mismatch, fmt::format("verify: {}", what))
          .with("parameter", parameter.name)
          .with("engine", engine);
    };
    if (!found) {
      throw refuse("a parameter is on one side only")
          .with("there", one.what)
          .with("missing", other.what);
    }
    const TensorInfo& twin = other.catalog.tensors[*found];
    if (twin.shape == parameter.shape && twin.dtype == parameter.dtype) continue;
    throw refuse("a parameter has two shapes or dtypes")
        .with(one.what, form_text(parameter))
        .with(other.what, form_text(twin));
  }
}

void check_same(std::string_view what, const std::string& a, const std::string& b) {
  if (a == b) return;
  throw Error(ErrorCode::mismatch, fmt::format("verify: A and B are of different {}", what))
      .with("A", a)
      .with("B", b)
      .hint("what serves another way has other parameters; compare each run with its checkpoint");
}

// What walks JSON takes stack for each level.
nlohmann::json parse_config_of(std::string_view side, const std::string& text) {
  auto config = parse_bounded<nlohmann::json>(text, kConfigDepthMax);
  if (config.is_object()) return config;
  throw Error(ErrorCode::corrupt_file, "verify: a config is not a JSON object of bounded depth")
      .with("of", side)
      .with("bytes", text.size())
      .with("depth max", kConfigDepthMax);
}

// Configs are equal when their values are; the first that differs is named.
void check_configs(const std::string& a, const std::string& b) {
  const nlohmann::json one = parse_config_of("A", a);
  const nlohmann::json other = parse_config_of("B", b);
  if (one == other) return;
  Error error(ErrorCode::mismatch, "verify: A and B are of different models");
  const nlohmann::json diff = nlohmann::json::diff(one, other);
  for (const nlohmann::json& step : diff) {
    const nlohmann::json::json_pointer at(step.at("path").get<std::string>());
    const auto text = [&](const nlohmann::json& config) {
      return config.contains(at) ? config.at(at).dump() : "nothing";
    };
    error.with("config", at.to_string()).with("A", text(one)).with("B", text(other));
    break;
  }
  throw error;
}

const Checkpoint& checkpoint_of(const Model& model) {
  if (model.checkpoint) return *model.checkpoint;
  throw Error(ErrorCode::invalid_argument, "verify: a config.json alone has no weights")
      .with("model", model.path.string())
      .hint("give a run, or a checkpoint's folder");
}

// What the plain loader makes of one engine rank.
class PlainRank {
 public:
  PlainRank(const Model& model, const Request& request, std::int64_t version, int engine)
      : checkpoint_(plain_checkpoint_at(model, static_cast<std::uint64_t>(version))),
        loader_(plain_engine(model, request, engine)) {
    for (const PlainParameter& parameter : loader_.parameters()) {
      if (parameter.storage != parameter.name) continue;
      parameters_.push_back(&parameter);
      catalog_.tensors.push_back({parameter.name, parameter.dtype, parameter.shape});
    }
  }

  const Catalog& catalog() const { return catalog_; }

  // The bytes of parameter `p` of the catalog.
  std::vector<std::byte> bytes(std::size_t p) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(byte_count(catalog_.tensors[p])));
    const std::string& name = catalog_.tensors[p].name;
    for (const std::string& tensor : loader_.tensors_of(name)) {
      loader_.load(name, tensor, checkpoint_, bytes);
    }
    return bytes;
  }

  bool is_cast(std::size_t p) const {
    return std::ranges::any_of(parameters_[p]->parts, [&](const PlainPart& part) {
      return checkpoint_.tensors.at(part.tensor).dtype != parameters_[p]->dtype;
    });
  }

  // The tensor that feeds an element; empty for padding.
  std::string tensor_of(std::size_t p, std::int64_t element) const {
    const std::int64_t row = element / columns_of(parameters_[p]->shape);
    for (const PlainPart& part : parameters_[p]->parts) {
      if (row >= part.target_row && row < part.target_row + part.rows) return part.tensor;
    }
    return "";
  }

 private:
  PlainCheckpoint checkpoint_;
  PlainLoader loader_;
  std::vector<const PlainParameter*> parameters_;
  Catalog catalog_;
};

// What `move` was asked for of the serving side.
Request request_of(const fs::path& folder, const Run& run) {
  Request request;
  request.engine = run.engine;
  request.parameter_dtype = run.parameter_dtype;
  request.expert_slots = expert_slots_file(folder, run);
  return request;
}

void check_rank_count(const Model& model, const Request& request, const Run& run) {
  plain_engine(model, request, 0);  // Refuses what is no mesh before anything else reads it.
  const int ranks = target_layout(model, request).rank_count;
  if (ranks == run.engine_ranks) return;
  throw Error(ErrorCode::mismatch, "verify: the run has not the ranks of its engine")
      .with("engine", run.engine)
      .with("ranks of the engine", ranks)
      .with("ranks of the run", run.engine_ranks);
}

}  // namespace

RunComparison compare_runs(const fs::path& a, const fs::path& b) {
  const Run run_a = read_run(a);
  const Run run_b = read_run(b);
  check_configs(run_a.config_text, run_b.config_text);
  check_same("engines", run_a.engine, run_b.engine);
  check_same("engine rank counts", std::to_string(run_a.engine_ranks),
             std::to_string(run_b.engine_ranks));
  check_same("parameter dtypes", std::string(name_of(run_a.parameter_dtype)),
             std::string(name_of(run_b.parameter_dtype)));
  if (read_expert_slots(expert_slots_file(a, run_a)) !=
      read_expert_slots(expert_slots_file(b, run_b))) {
    throw Error(ErrorCode::mismatch, "verify: A and B hold experts in different slots")
        .with("A", run_a.has_expert_slots ? expert_slots_file(a, run_a) : "no table")
        .with("B", run_b.has_expert_slots ? expert_slots_file(b, run_b) : "no table");
  }
  RunComparison result;
  result.engine_ranks = run_a.engine_ranks;
  result.version_a = run_a.version;
  result.version_b = run_b.version;
  for (int engine = 0; engine < run_a.engine_ranks; ++engine) {
    const Checkpoint rank_a = read_rank(a, run_a, engine);
    const Checkpoint rank_b = read_rank(b, run_b, engine);
    check_parameters(engine, {"A", rank_a.catalog()}, {"B", rank_b.catalog()});
    check_parameters(engine, {"B", rank_b.catalog()}, {"A", rank_a.catalog()});
    for (const TensorInfo& parameter : rank_a.catalog().tensors) {
      add(result, engine, parameter,
          compare_elements(parameter.dtype, rank_a.bytes(parameter.name),
                           rank_b.bytes(parameter.name), false));
    }
  }
  return result;
}

RunComparison compare_with_model(const fs::path& run_folder, const fs::path& model_path,
                                 RunIs side) {
  const Run run = read_run(run_folder);
  const Model model = open_model(model_path);
  checkpoint_of(model);
  const bool run_is_a = side == RunIs::a;
  check_configs(run_is_a ? run.config_text : model.config_text,
                run_is_a ? model.config_text : run.config_text);
  const Request request = request_of(run_folder, run);
  check_rank_count(model, request, run);
  RunComparison result;
  result.engine_ranks = run.engine_ranks;
  result.version_a = result.version_b = run.version;
  const std::string run_name = run_is_a ? "A" : "B", model_name = run_is_a ? "B" : "A";
  for (int engine = 0; engine < run.engine_ranks; ++engine) {
    const Checkpoint rank = read_rank(run_folder, run, engine);
    const PlainRank plain(model, request, run.version, engine);
    check_parameters(engine, {model_name, plain.catalog()}, {run_name, rank.catalog()});
    check_parameters(engine, {run_name, rank.catalog()}, {model_name, plain.catalog()});
    for (std::size_t p = 0; p < plain.catalog().tensors.size(); ++p) {
      const TensorInfo& parameter = plain.catalog().tensors[p];
      const Bytes found = rank.bytes(parameter.name);
      const std::vector<std::byte> expected = plain.bytes(p);
      auto difference = compare_elements(parameter.dtype, run_is_a ? found : Bytes(expected),
                                         run_is_a ? Bytes(expected) : found, plain.is_cast(p));
      if (difference) difference->tensor = plain.tensor_of(p, difference->first_different);
      add(result, engine, parameter, std::move(difference));
    }
  }
  return result;
}

}  // namespace crossmesh::cli
