// SPDX-License-Identifier: Apache-2.0
// `crossmesh layout`: one side's layout, written as JSON for other programs or read from theirs.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/layout_file.h"
#include "cli/model.h"
#include "cli/output.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/wire.h"

namespace crossmesh::cli {
namespace {

int run_layout(const Request& request) {
  const bool trainer = !request.trainer.empty();
  if (!trainer && request.engine.empty()) {
    print_text(explain(read_layout_file(request.model)));
    return kExitDone;
  }
  const Model model = open_model(request.model);
  const Layout layout = trainer ? source_layout(model, request) : target_layout(model, request);
  print_text(to_json(layout).dump() + "\n");
  return kExitDone;
}

}  // namespace

void register_layout(CLI::App& app, Invocation& invocation) {
  const auto request = std::make_shared<Request>();
  CLI::App* command = app.add_subcommand(
      "layout", "Write a side's layout as JSON, or check and explain one that was written");
  command
      ->add_option("MODEL", request->model,
                   "Folder of a checkpoint or a config.json; alone: a layout's file")
      ->required();
  CLI::Option* trainer =
      command->add_option("--trainer", request->trainer, "Write the layout of these training ranks")
          ->type_name("SPEC");
  command->add_option("--engine", request->engine, "Write the layout of these serving ranks")
      ->type_name("SPEC")
      ->excludes(trainer);
  add_expert_slots_option(*command, *request);
  command->callback([=, &invocation] { invocation.run = [=] { return run_layout(*request); }; });
}

}  // namespace crossmesh::cli
