// SPDX-License-Identifier: Apache-2.0
#include "cli/request.h"

#include <CLI/CLI.hpp>

#include "cli/format.h"

namespace crossmesh::cli {

CLI::Option* add_size_option(CLI::App& command, const std::string& name, std::int64_t& bytes,
                             const std::string& description) {
  const auto parse = [&bytes, name](const std::string& text) {
    const auto size = size_from_text(text);
    if (!size || *size <= 0) {
      throw CLI::ValidationError(name, text + " is not a size such as 65536, 64KiB or 1.5GiB");
    }
    bytes = *size;
  };
  return command.add_option_function<std::string>(name, parse, description)
      ->type_name("SIZE")
      ->default_str(bytes_text(bytes));
}

void add_expert_slots_option(CLI::App& command, Request& request) {
  command
      .add_option("--expert-slots", request.expert_slots,
                  "JSON: the expert of each slot, a row for all layers or one for each")
      ->type_name("FILE");
}

void add_request_options(CLI::App& command, Request& request) {
  command.add_option("MODEL", request.model, "Folder of a checkpoint, or a config.json")
      ->required();
  command.add_option("--trainer", request.trainer, "Mesh of the training ranks: fsdp=4,tp=2")
      ->required()
      ->type_name("SPEC");
  command.add_option("--engine", request.engine, "Mesh of the serving ranks: replicas=2,tp=4")
      ->required()
      ->type_name("SPEC");
  command.add_option("--opaque", request.opaque, "Tensors that take the engine's own loader")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command
      .add_option_function<std::string>(
          "--route",
          [&request](const std::string& text) {
            if (text != "direct" && text != "packed") {
              throw CLI::ValidationError("--route", text + " is neither direct nor packed");
            }
            request.schedule.route = text == "packed" ? Route::packed : Route::direct;
          },
          "direct: from the trainer's memory; packed: through bounded staging")
      ->type_name("ROUTE")
      ->default_str("direct");
  command
      .add_option_function<std::string>(
          "--param-dtype",
          [&request](const std::string& text) {
            request.parameter_dtype = dtype_from_name(text);
            if (!request.parameter_dtype) {
              throw CLI::ValidationError("--param-dtype", text + " is not a dtype");
            }
          },
          "Dtype of the engine's parameters; the config's when not given")
      ->type_name("DTYPE");
  add_expert_slots_option(command, request);
  add_size_option(command, "--staging-bytes-max", request.schedule.staging_bytes_max,
                  "Staging of each training rank, at most");
  add_size_option(command, "--fallback-bytes-max", request.schedule.fallback_bytes_max,
                  "Buffer of each serving rank for opaque tensors, at most");
}

}  // namespace crossmesh::cli
