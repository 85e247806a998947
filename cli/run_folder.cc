// SPDX-License-Identifier: Apache-2.0
#include "cli/run_folder.h"

#include <nlohmann/json.hpp>

#include "cli/bounded_input.h"
#include "crossmesh/base/error.h"
#include "crossmesh/catalog/write.h"

namespace crossmesh::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kRunBytesMax = std::int64_t{32} << 20;
constexpr int kDepthMax = 8;
constexpr std::int64_t kEngineRanksMax = 1'000'000;

fs::path run_file(const fs::path& folder) { return folder / "run.json"; }

Error corrupt(const fs::path& file, std::string_view what) {
  return Error(ErrorCode::corrupt_file, fmt::format("read run: {}", what))
      .with("file", file.string());
}

// The fields of a run.json, each of its kind.
class Fields {
 public:
  Fields(const fs::path& file, const Json& json) : file_(file), json_(json) {}

  std::string text(const char* field) const {
    const Json& value = at(field);
    if (!value.is_string()) throw refuse(field, "a text");
    return value.get<std::string>();
  }

  bool flag(const char* field) const {
    const Json& value = at(field);
    if (!value.is_boolean()) throw refuse(field, "true or false");
    return value.get<bool>();
  }

  std::int64_t number(const char* field, std::int64_t first, std::int64_t last) const {
    const Json& value = at(field);
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
    if (!fits || value.get<std::int64_t>() < first || value.get<std::int64_t>() > last) {
      throw refuse(field, fmt::format("{} to {}", first, last));
    }
    return value.get<std::int64_t>();
  }

  Error refuse(const char* field, std::string_view expected) const {
    return corrupt(file_, "a field is missing or of another kind")
        .with("field", field)
        .with("expected", expected);
  }

 private:
  const Json& at(const char* field) const {
    static const Json kNothing;
    const auto found = json_.find(field);
    return found == json_.end() ? kNothing : *found;
  }

  const fs::path& file_;
  const Json& json_;
};

}  // namespace

fs::path rank_file(const fs::path& folder, int engine_rank) {
  return folder / fmt::format("engine-{:05}.safetensors", engine_rank);
}

std::string expert_slots_file(const fs::path& folder, const Run& run) {
  return run.has_expert_slots ? (folder / "expert-slots.json").string() : "";
}

bool holds_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(run_file(folder), error);
}

void check_free_for_run(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw Error(ErrorCode::invalid_argument, "dump: there is something else than a folder")
        .with("path", folder.string());
  }
  if (holds_run(folder)) {
    throw Error(ErrorCode::invalid_argument, "dump: the folder holds a run already")
        .with("folder", folder.string())
        .hint("give --dump another folder, or remove this one");
  }
  // A checkpoint is every .safetensors file of its folder: those of a run would spoil it.
  if (const auto config = find_config(folder)) {
    throw Error(ErrorCode::invalid_argument, "dump: the folder holds a model")
        .with("folder", folder.string())
        .with("config", config->string())
        .hint("give --dump a folder of its own");
  }
}

void write_run(const fs::path& folder, const Run& run) {
  const Json json = {{"crossmesh_run", kRunSchema},
                     {"model", run.model},
                     {"config", run.config_text},
                     {"trainer", run.trainer},
                     {"engine", run.engine},
                     {"engine_ranks", run.engine_ranks},
                     {"parameter_dtype", name_of(run.parameter_dtype)},
                     {"expert_slots", run.has_expert_slots},
                     {"version", run.version}};
  write_text(run_file(folder), json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Run read_run(const fs::path& folder) {
  const fs::path file = run_file(folder);
  const Json json = parse_bounded<Json>(read_bounded(file, {"read run", kRunBytesMax}), kDepthMax);
  if (!json.is_object()) throw corrupt(file, "the file is not a JSON object");
  const Fields fields(file, json);
  const std::int64_t schema = fields.number("crossmesh_run", 0, INT64_MAX);
  if (schema != kRunSchema) {
    throw Error(ErrorCode::unsupported, "read run: the file is of another version")
        .with("file", file.string())
        .with("version", schema)
        .with("known", kRunSchema);
  }
  Run run;
  run.model = fields.text("model");
  run.config_text = fields.text("config");
  run.trainer = fields.text("trainer");
  run.engine = fields.text("engine");
  run.engine_ranks = static_cast<int>(fields.number("engine_ranks", 1, kEngineRanksMax));
  run.has_expert_slots = fields.flag("expert_slots");
  run.version = fields.number("version", 0, INT64_MAX);
  const auto dtype = dtype_from_name(fields.text("parameter_dtype"));
  if (!dtype || !is_byte_sized(*dtype)) throw fields.refuse("parameter_dtype", "a dtype");
  run.parameter_dtype = *dtype;
  return run;
}

Checkpoint read_rank(const fs::path& folder, const Run& run, int engine_rank) {
  const fs::path file = rank_file(folder, engine_rank);
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    throw Error(ErrorCode::io_failed, "read run: the file of an engine rank is missing")
        .with("file", file.string())
        .with("engine", engine_rank)
        .with("engine ranks", run.engine_ranks)
        .hint("make the run again with --dump");
  }
  Checkpoint rank = read(file);
  for (const TensorInfo& parameter : rank.catalog().tensors) {
    if (is_byte_sized(parameter.dtype)) continue;
    throw Error(ErrorCode::unsupported, "read run: the elements of a parameter do not fill bytes")
        .with("file", file.string())
        .with("parameter", parameter.name)
        .with("dtype", name_of(parameter.dtype));
  }
  return rank;
}

}  // namespace crossmesh::cli
