// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/m2n_init.h"

#include <nlohmann/json.hpp>
#include <span>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

using nlohmann::json;

// An object of which every field is one of `fields`.
class Fields {
 public:
  Fields(std::string_view text, std::string_view what, std::span<const std::string_view> fields)
      : what_(what), object_(json::parse(text, nullptr, false)) {
    if (!object_.is_object()) throw invalid("is no JSON object");
    for (const auto& [name, value] : object_.items()) {
      if (std::find(fields.begin(), fields.end(), name) == fields.end()) {
        throw invalid("has a field that is not known").with("field", name);
      }
    }
  }

  template <typename Value>
  std::optional<Value> get(const char* name) const {
    const auto at = object_.find(name);
    if (at == object_.end() || at->is_null()) return std::nullopt;
    try {
      Value value = at->template get<Value>();
      // What is no number, or past the type's range, does not come back as it was.
      if (json(value) != *at) throw invalid("has a field of the wrong type").with("field", name);
      return value;
    } catch (const json::exception&) {
      throw invalid("has a field of the wrong type").with("field", name);
    }
  }

  template <typename Value>
  Value require(const char* name) const {
    std::optional<Value> value = get<Value>(name);
    if (!value) throw invalid("lacks a field").with("field", name);
    return *std::move(value);
  }

  const json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() ? nullptr : &*at;
  }

  Error invalid(std::string_view how) const {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("read: Invalid {} for nccl_m2n: it {}", what_, how));
  }

 private:
  std::string_view what_;
  json object_;
};

// Standard base64, padded. Nothing where the text is not that.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_padding = i + padding >= text.size();
    const std::size_t digit = is_padding ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6U | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const unsigned shift : {16U, 8U, 0U}) bytes.push_back(static_cast<char>(bits >> shift));
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

Rendezvous rendezvous_of(const Fields& fields) {
  Rendezvous result;
  result.address = fields.get<std::string>("master_address");
  result.port = fields.get<std::int64_t>("master_port");
  const std::string id = fields.get<std::string>("nccl_unique_id_b64").value_or("");
  if (!id.empty() && (result.address || result.port)) {
    throw Error(ErrorCode::invalid_argument,
                "join: give nccl_unique_id_b64 or master_address and master_port, not both");
  }
  if (id.empty() && !(result.address && result.port)) {
    throw Error(ErrorCode::invalid_argument,
                "join: need nccl_unique_id_b64, or master_address and master_port");
  }
  if (id.empty()) return result;
  const std::optional<std::string> bytes = from_base64(id);
  if (!bytes) {
    throw Error(ErrorCode::invalid_argument,
                "join: nccl_unique_id_b64 is not valid standard base64");
  }
  if (bytes->size() != kUniqueIdBytes) {
    throw Error(ErrorCode::invalid_argument, "join: nccl_unique_id_b64 is of another size")
        .with("bytes", bytes->size())
        .with("expected", kUniqueIdBytes);
  }
  result.unique_id = *bytes;
  return result;
}

void check_length(std::string_view field, std::size_t length, std::size_t names) {
  if (length == names) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("read: `{}` and `names` differ in length: {} and {}", field, length, names));
}

void check_destination_mesh(const std::vector<std::int64_t>& dims, std::int64_t workers) {
  const bool is_pair = dims.size() == 2;
  std::int64_t product = 0;
  if (is_pair && !__builtin_mul_overflow(dims[0], dims[1], &product) && product == workers) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("read: dst_mesh_dims do not cover {} inference workers", workers))
      .with("dst_mesh_dims", fmt::format("[{}]", fmt::join(dims, ", ")));
}

constexpr std::string_view kWorkerFields[] = {
    "master_address", "master_port",   "nccl_unique_id_b64", "rank_offset",
    "world_size",     "src_mesh_dims", "dst_mesh_dims",      "names",
    "dtype_names",    "shapes",        "src_placements",     "max_cta"};
constexpr std::string_view kTrainerFields[] = {"master_address",
                                               "master_port",
                                               "nccl_unique_id_b64",
                                               "world_size",
                                               "num_trainer_ranks",
                                               "dst_mesh_dims",
                                               "max_cta",
                                               "rank"};
constexpr std::string_view kUpdateFields[] = {"names"};

std::vector<Placements> placements_of(const Fields& fields) {
  const json* rows = fields.find("src_placements");
  if (rows == nullptr || !rows->is_array()) {
    throw fields.invalid("lacks a field").with("field", "src_placements");
  }
  std::vector<Placements> result;
  for (const json& row : *rows) {
    if (row.is_null()) {
      result.push_back(std::nullopt);
      continue;
    }
    try {
      result.push_back(row.get<std::vector<int>>());
    } catch (const json::exception&) {
      throw fields.invalid("has a field of the wrong type").with("field", "src_placements");
    }
  }
  return result;
}

}  // namespace

WorkerInit worker_init(std::string_view json_text) {
  const Fields fields(json_text, "init_info", kWorkerFields);
  WorkerInit init;
  init.names = fields.require<std::vector<std::string>>("names");
  init.dtype_names = fields.require<std::vector<std::string>>("dtype_names");
  init.shapes = fields.require<std::vector<std::vector<std::int64_t>>>("shapes");
  init.source_placements = placements_of(fields);
  init.rank_offset = fields.require<int>("rank_offset");
  init.world_size = fields.require<int>("world_size");
  init.source_mesh_dims = fields.require<std::vector<std::int64_t>>("src_mesh_dims");
  init.destination_mesh_dims = fields.require<std::vector<std::int64_t>>("dst_mesh_dims");
  init.rendezvous = rendezvous_of(fields);
  check_length("dtype_names", init.dtype_names.size(), init.names.size());
  check_length("shapes", init.shapes.size(), init.names.size());
  check_length("src_placements", init.source_placements.size(), init.names.size());
  if (init.rank_offset <= 0 || init.rank_offset >= init.world_size) {
    throw Error(ErrorCode::invalid_argument, "read: rank_offset leaves one side without ranks")
        .with("rank_offset", init.rank_offset)
        .with("world_size", init.world_size);
  }
  check_destination_mesh(init.destination_mesh_dims, init.world_size - init.rank_offset);
  return init;
}

std::vector<std::string> worker_update(std::string_view json_text) {
  return Fields(json_text, "update_info", kUpdateFields).require<std::vector<std::string>>("names");
}

TrainerInit trainer_init(std::string_view json_text) {
  const Fields fields(json_text, "init_info", kTrainerFields);
  TrainerInit init;
  init.rank = fields.require<int>("rank");
  init.world_size = fields.require<int>("world_size");
  init.trainer_count = fields.get<int>("num_trainer_ranks").value_or(1);
  init.rendezvous = rendezvous_of(fields);
  if (init.trainer_count <= 0 || init.trainer_count >= init.world_size) {
    throw Error(ErrorCode::invalid_argument,
                "read: num_trainer_ranks leaves one side without ranks")
        .with("num_trainer_ranks", init.trainer_count)
        .with("world_size", init.world_size);
  }
  const std::int64_t workers = init.world_size - init.trainer_count;
  init.destination_mesh_dims = fields.get<std::vector<std::int64_t>>("dst_mesh_dims")
                                   .value_or(std::vector<std::int64_t>{workers, 1});
  check_destination_mesh(init.destination_mesh_dims, workers);
  if (init.rank < 0 || init.rank >= init.trainer_count) {
    throw Error(ErrorCode::invalid_argument, "read: rank is not below num_trainer_ranks")
        .with("rank", init.rank)
        .with("num_trainer_ranks", init.trainer_count);
  }
  return init;
}

int worker_rank(const WorkerPlace& place) {
  return place.rank_offset + place.data_parallel_index * place.world_size + place.rank;
}

}  // namespace crossmesh::profiles
