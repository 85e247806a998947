// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/format.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/synth.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

struct SynthRequest {
  std::string folder;
  std::string config;
  std::uint64_t seed = 0;
  int shards = 1;
  bool replace = false;
  bool stacked_experts = false;
};

// A config says nothing of the form that experts have in a checkpoint.
std::vector<TensorInfo> tensors_to_make(const SynthRequest& request, const Model& model) {
  if (!request.stacked_experts) return model.catalog.tensors;
  if (model.config.experts == 0) {
    throw Error(ErrorCode::invalid_argument, "synth: the model has no experts to stack")
        .with("config", request.config)
        .with("model_type", model.config.model_type);
  }
  return tensors_of(family_of(model.config, ExpertForm::stacked), model.config);
}

int run_synth(const SynthRequest& request, bool json) {
  const Model model = open_model(request.config);
  if (model.checkpoint) {
    throw Error(ErrorCode::invalid_argument, "synth: --config is a folder")
        .with("folder", request.config)
        .hint("give the config.json itself");
  }
  const Catalog catalog{tensors_to_make(request, model)};
  const std::int64_t bytes = byte_count(catalog);
  const auto start = std::chrono::steady_clock::now();
  Progress progress("writing", bytes);
  synth(catalog.tensors,
        {.folder = request.folder,
         .config_text = model.config_text,
         .seed = request.seed,
         .shard_count = request.shards,
         .is_replacing = request.replace,
         .on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); }});
  progress.finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (json) {
    print_json({{"folder", request.folder},
                {"model", model.config.architecture},
                {"seed", request.seed},
                {"shards", request.shards},
                {"tensors", catalog.tensors.size()},
                {"bytes", bytes},
                {"seconds", seconds}});
  } else {
    print_text(fmt::format("{}: {} tensors, {}, {} file{}, seed {}, {}\n", request.folder,
                           catalog.tensors.size(), bytes_text(bytes), request.shards,
                           request.shards == 1 ? "" : "s", request.seed, seconds_text(seconds)));
  }
  return kExitDone;
}

}  // namespace

void register_synth(CLI::App& app, Invocation& invocation) {
  auto request = std::make_shared<SynthRequest>();
  CLI::App* command = app.add_subcommand("synth", "Make a checkpoint with random weights");
  command->add_option("DIR", request->folder, "Folder for the checkpoint")->required();
  command->add_option("--config", request->config, "The model's config.json")
      ->required()
      ->type_name("FILE");
  command->add_option("--seed", request->seed, "Equal seeds give equal bytes")
      ->capture_default_str();
  command->add_option("--shards", request->shards, "Files to write")
      ->check(CLI::Range(1, 99'999))
      ->type_name("K")
      ->capture_default_str();
  command->add_flag("--replace", request->replace, "Remove a checkpoint that is in DIR");
  command->add_flag("--stacked-experts", request->stacked_experts,
                    "All experts of a layer in two tensors");
  command->add_flag("--json", invocation.json, "Print JSON");
  command->callback([request, &invocation] {
    invocation.run = [request, json = invocation.json] { return run_synth(*request, json); };
  });
}

}  // namespace crossmesh::cli
