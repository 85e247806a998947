// SPDX-License-Identifier: Apache-2.0
#include "cli/model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "cli/expert_slots.h"
#include "cli/layout_file.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/opaque.h"
#include "crossmesh/layout/spec.h"
#include "crossmesh/source/shard.h"

namespace crossmesh::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kConfigBytesMax = std::int64_t{16} << 20;
constexpr std::size_t kCompareBytes = std::size_t{8} << 20;
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

std::string read_text(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) {
    throw Error(ErrorCode::io_failed, "open model: the config cannot be read")
        .with("file", path.string())
        .with("system", error.message());
  }
  if (bytes > static_cast<std::uintmax_t>(kConfigBytesMax)) {
    throw Error(ErrorCode::limit_exceeded, "open model: the config is too large")
        .with("file", path.string())
        .with("bytes", bytes)
        .with("bytes max", kConfigBytesMax);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.good() && !file.eof()) {
    throw Error(ErrorCode::io_failed, "open model: the config cannot be read")
        .with("file", path.string())
        .with("system", std::strerror(errno));
  }
  return text;
}

void read_config(Model& model, const fs::path& file) {
  model.config_text = read_text(file);
  try {
    model.config = parse_config(model.config_text);
  } catch (Error& error) {
    error.with("file", file.string());
    throw;
  }
}

void find_experts(Model& model) {
  try {
    model.expert_form = expert_form_of(model.config, model.catalog);
  } catch (Error& error) {
    error.with("folder", model.path.string());
    throw;
  }
}

std::int64_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
}

}  // namespace

Model open_model(const fs::path& path) {
  Model model;
  model.path = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) {
    const auto config = find_config(path);
    if (!config) {
      throw Error(ErrorCode::invalid_argument, "open model: the folder has no config.json")
          .with("folder", path.string());
    }
    read_config(model, *config);
    model.checkpoint = read(path);
    model.catalog = model.checkpoint->catalog();
    find_experts(model);
    return model;
  }
  if (!fs::exists(status)) {
    throw Error(ErrorCode::invalid_argument, "open model: there is no such file or folder")
        .with("path", path.string());
  }
  if (path.extension() != ".json") {
    throw Error(ErrorCode::invalid_argument, "open model: neither a folder nor a config.json")
        .with("path", path.string())
        .hint("give the folder that holds config.json and the .safetensors files");
  }
  read_config(model, path);
  model.catalog.tensors = tensors_of(family_of(model.config), model.config);
  return model;
}

Layout source_layout(const Model& model, const Request& request) {
  if (names_layout_file(request.trainer)) return layout_of_spec(request.trainer);
  return shard(model.catalog, parse_spec(request.trainer));
}

Layout target_layout(const Model& model, const Request& request) {
  const bool is_file = names_layout_file(request.engine);
  if (is_file && !request.expert_slots.empty()) {
    throw Error(ErrorCode::invalid_argument, "lay out: the engine's layout says where experts lie")
        .with("engine", request.engine)
        .with("expert slots", request.expert_slots);
  }
  Layout target = is_file
                      ? layout_of_spec(request.engine)
                      : lay_out(family_of(model.config, model.expert_form), model.config,
                                parse_spec(request.engine),
                                {request.parameter_dtype, read_expert_slots(request.expert_slots)});
  for (const std::string& pattern : request.opaque) {
    mark_opaque(target, pattern, "asked for by --opaque " + pattern);
  }
  return target;
}

void check_tied(const Model& model, const std::function<void(std::int64_t)>& on_progress) {
  if (!model.config.tied_embeddings || !model.checkpoint) return;
  const Checkpoint& checkpoint = *model.checkpoint;
  const auto head = checkpoint.find(kHead);
  const auto embedding = checkpoint.find(kEmbedding);
  if (!head || !embedding) return;
  const TensorInfo& info = checkpoint.catalog().tensors[*head];
  const TensorInfo& other = checkpoint.catalog().tensors[*embedding];
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::mismatch, "check tied: " + std::string(what))
        .with("tensor", kHead)
        .with("tied to", kEmbedding)
        .with("file", checkpoint.file_of(*head).path.string());
  };
  if (info.dtype != other.dtype || info.shape != other.shape) {
    throw refuse("lm_head is not the embedding's twin")
        .with("dtypes", fmt::format("{} and {}", name_of(info.dtype), name_of(other.dtype)))
        .with("shapes", fmt::format("[{}] and [{}]", fmt::join(info.shape, ", "),
                                    fmt::join(other.shape, ", ")));
  }
  const auto a = checkpoint.bytes(*head);
  const auto b = checkpoint.bytes(*embedding);
  for (std::size_t at = 0; at < a.size(); at += kCompareBytes) {
    const std::size_t count = std::min(kCompareBytes, a.size() - at);
    if (std::memcmp(a.data() + at, b.data() + at, count) != 0) {
      const std::int64_t byte = static_cast<std::int64_t>(at) +
                                first_difference(a.subspan(at, count), b.subspan(at, count));
      throw refuse("lm_head differs from the embedding that the config ties it to")
          .with("first byte that differs", byte)
          .with("bytes", a.size())
          .hint("set tie_word_embeddings to false in config.json if the two are meant to differ");
    }
    if (on_progress) on_progress(static_cast<std::int64_t>(at + count));
  }
}

}  // namespace crossmesh::cli
