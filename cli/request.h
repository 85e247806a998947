// SPDX-License-Identifier: Apache-2.0
// What `plan` and `move` are asked for alike: a model, the two meshes, and how bytes may go. Both
// commands take the same options by the same names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/schedule/schedule.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace crossmesh::cli {

struct Request {
  std::string model;                     // a checkpoint's folder, or a config.json
  std::string trainer;                   // `fsdp=2,tp=2`
  std::string engine;                    // `replicas=2,tp=4`
  std::vector<std::string> opaque;       // patterns of tensors that take the fallback
  std::optional<DType> parameter_dtype;  // of the engine; the config's when not given
  std::string expert_slots;              // a file that says which expert each slot holds
  ScheduleOptions schedule;              // route and bounds
};

// Adds MODEL, --trainer, --engine, --opaque, --route, --param-dtype, --expert-slots,
// --staging-bytes-max and --fallback-bytes-max. A value that is not of its kind is a usage error.
// Requires: `request` outlives the parse.
void add_request_options(CLI::App& command, Request& request);

void add_expert_slots_option(CLI::App& command, Request& request);

// Adds an option that takes a size: `65536`, `64KiB`, `1.5GiB`.
CLI::Option* add_size_option(CLI::App& command, const std::string& name, std::int64_t& bytes,
                             const std::string& description);

}  // namespace crossmesh::cli
