// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/command.h"
#include "cli/format.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/plan_text.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "crossmesh/base/error.h"
#include "crossmesh/plan/plan.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh::cli {
namespace {

struct PlanOptions {
  Request request;
  std::string only;
  std::string part;
};

class Stopwatch {
 public:
  // Seconds since it was made, or since the last lap.
  double lap() {
    const Clock::time_point at = Clock::now();
    return std::chrono::duration<double>(at - std::exchange(from_, at)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point from_ = Clock::now();
};

// The bytes of a tied twin are compared outside the timed steps: they are checked, not planned.
void check_tied_with_progress(const Model& model) {
  Progress progress("comparing lm_head", 0);
  if (const auto head = find(model.catalog, "lm_head.weight")) {
    progress.set_total(byte_count(model.catalog.tensors[*head]));
  }
  check_tied(model, [&](std::int64_t done) { progress.update(done); });
}

// The compiler knows no files: where it refuses, it is told which ones were meant.
Plan compile_for(const Model& model, Layout source, Layout target) {
  try {
    return compile(std::move(source), std::move(target));
  } catch (Error& error) {
    error.with("model", model.path.string());
    throw;
  }
}

int run_plan(const PlanOptions& options, bool json) {
  PlanSeconds seconds;
  Stopwatch watch;
  const Model model = open_model(options.request.model);
  seconds.catalog = watch.lap();
  check_tied_with_progress(model);
  watch.lap();
  Layout source = source_layout(model, options.request);
  Layout target = target_layout(model, options.request);
  seconds.layout = watch.lap();
  Plan plan = compile_for(model, std::move(source), std::move(target));
  seconds.compile = watch.lap();
  const Schedule schedule = arrange(std::move(plan), options.request.schedule);
  seconds.arrange = watch.lap();

  std::optional<PartReport> part;
  if (!options.part.empty()) part = part_of(schedule, options.part);
  PlanReport report = report_of(schedule, model, options.request, seconds);
  report.part = std::move(part);
  if (json) {
    print_json(json_of(report));
  } else {
    print_text(text_of(report, schedule, options.only));
  }
  return kExitDone;
}

}  // namespace

void register_plan(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "Show which bytes would go where, without moving any");
  add_request_options(*command, options->request);
  command
      ->add_option("--only", options->only,
                   "Show tensors that match, one by one, with every copy of theirs")
      ->type_name("GLOB");
  command
      ->add_option("--part", options->part,
                   "Expand the copies of one rank too: engine:3, trainer:0")
      ->type_name("SIDE:RANK");
  command->add_flag("--json", invocation.json, "Print JSON");
  command->callback([options, &invocation] {
    invocation.run = [options, json = invocation.json] { return run_plan(*options, json); };
  });
}

}  // namespace crossmesh::cli
