// SPDX-License-Identifier: Apache-2.0
// What `crossmesh plan` shows of a schedule: the totals for machines, and for people a table of
// tensors by layer with where they go, or every copy of a few.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/model.h"
#include "cli/plan_part.h"
#include "cli/request.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh::cli {

// Wall-clock time of each step of planning.
struct PlanSeconds {
  double catalog = 0;
  double layout = 0;
  double compile = 0;
  double arrange = 0;

  double total() const { return catalog + layout + compile + arrange; }
};

struct PlanReport {
  std::string model;    // `Qwen3ForCausalLM`
  std::string trainer;  // the specs as given
  std::string engine;
  int trainer_ranks = 0;
  int engine_ranks = 0;
  int replicas = 0;             // of the engine
  std::int64_t tensors = 0;     // names in the checkpoint
  std::int64_t parameters = 0;  // of one engine rank
  std::int64_t classes = 0;     // interned geometries of the plan
  std::int64_t groups = 0;
  Totals totals;
  std::vector<Unused> unused;
  Fingerprint fingerprint;  // of the schedule
  PlanSeconds seconds;
  std::optional<PartReport> part;
  std::int64_t peak_rss_bytes = 0;
};

PlanReport report_of(const Schedule& schedule, const Model& model, const Request& request,
                     const PlanSeconds& seconds);

nlohmann::ordered_json json_of(const PlanReport& report);

// Totals and, without `only`, one line per kind of tensor, layers taken together; with it, each
// tensor that matches and every copy of its bytes.
// Throws: invalid_argument when `only` matches no tensor.
std::string text_of(const PlanReport& report, const Schedule& schedule, const std::string& only);

}  // namespace crossmesh::cli
