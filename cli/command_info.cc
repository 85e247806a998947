// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"
#include "cli/format.h"
#include "cli/machine.h"
#include "cli/output.h"

namespace crossmesh::cli {
namespace {

nlohmann::ordered_json or_null(const std::optional<std::int64_t>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json json_of(const Machine& machine, const CopyRates& rates) {
  nlohmann::ordered_json transports = nlohmann::ordered_json::array();
  for (const TransportFacts& transport : machine.transports) {
    transports.push_back(
        {{"name", transport.name}, {"available", transport.available}, {"why", transport.why}});
  }
  return {{"processor", machine.processor},
          {"cores", machine.cores},
          {"cores_online", machine.cores_online},
          {"features", machine.features},
          {"copy_path", machine.copy_path},
          {"memory_bytes", machine.memory_bytes},
          {"memory_available_bytes", machine.memory_available_bytes},
          {"page_bytes", machine.page_bytes},
          {"transparent_huge_pages", machine.transparent_huge_pages},
          {"transparent_huge_pages_shared", machine.transparent_huge_pages_shared},
          {"transports", std::move(transports)},
          {"copy_bytes_per_second", {{"memcpy", rates.memcpy}, {"streaming", rates.streaming}}},
          {"copy_buffer_bytes", rates.buffer_bytes},
          {"limits",
           {{"open_files_max", or_null(machine.open_files_max)},
            {"locked_bytes_max", or_null(machine.locked_bytes_max)},
            {"dev_shm_bytes", or_null(machine.dev_shm_bytes)},
            {"ptrace_scope", machine.ptrace_scope},
            {"user_namespaces", machine.user_namespaces}}}};
}

std::string text_of(const Machine& machine, const CopyRates& rates) {
  const auto bytes_or = [](const std::optional<std::int64_t>& bytes, const char* otherwise) {
    return bytes ? bytes_text(*bytes) : std::string(otherwise);
  };
  std::string text = facts_text({
      {"processor", machine.processor},
      {"cores", fmt::format("{} of {}", machine.cores, machine.cores_online)},
      {"features", fmt::format("{}", fmt::join(machine.features, " "))},
      {"copy kernels", machine.copy_path},
      {"memory", fmt::format("{}, {} available", bytes_text(machine.memory_bytes),
                             bytes_text(machine.memory_available_bytes))},
      {"pages",
       fmt::format("{}; huge pages {}, for shared memory {}", bytes_text(machine.page_bytes),
                   machine.transparent_huge_pages, machine.transparent_huge_pages_shared)},
      {"copy rate", fmt::format("memcpy {}, streaming {} (one thread, {})", rate_text(rates.memcpy),
                                rate_text(rates.streaming), bytes_text(rates.buffer_bytes))},
      {"open files", machine.open_files_max ? count_text(*machine.open_files_max) : "no limit"},
      {"locked memory", bytes_or(machine.locked_bytes_max, "no limit")},
      {"/dev/shm", bytes_or(machine.dev_shm_bytes, "not mounted") + " (not used: memfd is)"},
      {"ptrace scope", machine.ptrace_scope},
      {"user namespaces", machine.user_namespaces},
  });
  Table table({{"transport"}, {"here"}, {"why"}});
  for (const TransportFacts& transport : machine.transports) {
    table.add({transport.name, transport.available ? "yes" : "no", transport.why});
  }
  return text + "\n" + table.text();
}

}  // namespace

void register_info(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("info", "Show what this machine can do, and why not");
  command->add_flag("--json", invocation.json, "Print JSON");
  command->callback([&invocation] {
    invocation.run = [json = invocation.json] {
      const Machine machine = inspect_machine();
      const CopyRates rates = measure_copy_rates();
      if (json) {
        print_json(json_of(machine, rates));
      } else {
        print_text(text_of(machine, rates));
      }
      return kExitDone;
    };
  });
}

}  // namespace crossmesh::cli
