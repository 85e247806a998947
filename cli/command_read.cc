// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/format.h"
#include "cli/output.h"
#include "crossmesh/base/glob.h"
#include "crossmesh/catalog/read.h"

namespace crossmesh::cli {
namespace {

struct ReadOptions {
  std::string path;
  std::string only = "*";
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

nlohmann::ordered_json json_of(const Checkpoint& checkpoint, const ReadOptions& options) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const CheckpointFile& file : checkpoint.files()) {
    files.push_back({{"path", file.path.string()},
                     {"bytes", file.bytes},
                     {"tensors", file.tensor_count},
                     {"metadata", file.metadata}});
  }
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  const std::vector<TensorInfo>& infos = checkpoint.catalog().tensors;
  for (std::size_t t = 0; t < infos.size(); ++t) {
    if (!glob_matches(options.only, infos[t].name)) continue;
    tensors.push_back({{"name", infos[t].name},
                       {"dtype", name_of(infos[t].dtype)},
                       {"shape", infos[t].shape},
                       {"bytes", byte_count(infos[t])},
                       {"file", checkpoint.file_of(t).path.filename().string()},
                       {"offset", checkpoint.offset_of(t)}});
  }
  return {{"tensor_count", infos.size()},
          {"bytes", byte_count(checkpoint.catalog())},
          {"files", std::move(files)},
          {"tensors", std::move(tensors)}};
}

std::string text_of(const Checkpoint& checkpoint, const ReadOptions& options) {
  using Align = Table::Align;
  Table table({{"tensor"}, {"dtype"}, {"shape"}, {"size", Align::right}, {"file"}});
  const std::vector<TensorInfo>& infos = checkpoint.catalog().tensors;
  for (std::size_t t = 0; t < infos.size(); ++t) {
    if (!glob_matches(options.only, infos[t].name)) continue;
    table.add({infos[t].name, std::string(name_of(infos[t].dtype)), shape_text(infos[t].shape),
               bytes_text(byte_count(infos[t])), checkpoint.file_of(t).path.filename().string()});
  }
  const std::int64_t bytes = byte_count(checkpoint.catalog());
  return table.text() + fmt::format("{} tensors, {} ({} bytes), {} file{}\n", infos.size(),
                                    bytes_text(bytes), count_text(bytes), checkpoint.files().size(),
                                    checkpoint.files().size() == 1 ? "" : "s");
}

}  // namespace

void register_read(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<ReadOptions>();
  CLI::App* command = app.add_subcommand("read", "List the tensors of a checkpoint");
  command->add_option("PATH", options->path, "A .safetensors file, an index, or their folder")
      ->required();
  command->add_option("--only", options->only, "Show only tensors that match")->type_name("GLOB");
  command->add_flag("--json", invocation.json, "Print JSON");
  command->callback([options, &invocation] {
    invocation.run = [options, json = invocation.json] {
      const Checkpoint checkpoint = read(options->path);
      if (json) {
        print_json(json_of(checkpoint, *options));
      } else {
        print_text(text_of(checkpoint, *options));
      }
      return kExitDone;
    };
  });
}

}  // namespace crossmesh::cli
