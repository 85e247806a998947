// SPDX-License-Identifier: Apache-2.0
// `crossmesh verify`: two runs, or a run and a checkpoint, element by element.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/compare_runs.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/run_folder.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using nlohmann::ordered_json;

// A text lists as many parameters; JSON lists all.
constexpr std::size_t kRowsMax = 20;

struct VerifyRequest {
  std::string a, b;
};

RunComparison compare(const VerifyRequest& request) {
  const bool a_is_run = holds_run(request.a), b_is_run = holds_run(request.b);
  if (a_is_run && b_is_run) return compare_runs(request.a, request.b);
  if (a_is_run) return compare_with_model(request.a, request.b, RunIs::a);
  if (b_is_run) return compare_with_model(request.b, request.a, RunIs::b);
  throw Error(ErrorCode::invalid_argument, "verify: neither folder holds a run")
      .with("A", request.a)
      .with("B", request.b)
      .hint("`crossmesh move --dump DIR` makes one");
}

std::int64_t elements_different(const RunComparison& found) {
  std::int64_t sum = 0;
  for (const ParameterDifference& one : found.differences) sum += one.elements_different;
  return sum;
}

// The place of an element in its parameter, dimension by dimension.
std::vector<std::int64_t> index_of(const ParameterDifference& difference) {
  std::vector<std::int64_t> index;
  std::int64_t left = difference.first_different;
  for (std::size_t dim = difference.shape.size(); dim > 0; --dim) {
    index.push_back(left % difference.shape[dim - 1]);
    left /= difference.shape[dim - 1];
  }
  std::reverse(index.begin(), index.end());
  return index;
}

ordered_json json_of(const ElementText& element) {
  return {{"value", element.value}, {"hex", element.hex}};
}

ordered_json json_of(const VerifyRequest& request, const RunComparison& found) {
  ordered_json json = {{"equal", found.differences.empty()},
                       {"a", {{"path", request.a}, {"version", found.version_a}}},
                       {"b", {{"path", request.b}, {"version", found.version_b}}},
                       {"engine_ranks", found.engine_ranks},
                       {"parameters", found.parameters},
                       {"elements", found.elements},
                       {"elements_different", elements_different(found)},
                       {"differences", ordered_json::array()}};
  for (const ParameterDifference& one : found.differences) {
    ordered_json row = {{"engine", one.engine},
                        {"parameter", one.parameter},
                        {"dtype", name_of(one.dtype)},
                        {"elements", one.elements},
                        {"elements_different", one.elements_different},
                        {"first", {{"element", one.first_different}, {"index", index_of(one)}}}};
    if (!one.tensor.empty()) row["first"]["tensor"] = one.tensor;
    row["first"]["a"] = json_of(one.a);
    row["first"]["b"] = json_of(one.b);
    json["differences"].push_back(std::move(row));
  }
  return json;
}

// `  A  BF16 0xbc4a -0.0123`; where no value is known, the bits alone.
std::string element_line(std::string_view side, DType dtype, const ElementText& element) {
  return fmt::format("  {}  {} {}{}{}\n", side, name_of(dtype), element.hex,
                     element.value.empty() ? "" : " ", element.value);
}

std::string text_of(const RunComparison& found) {
  if (found.differences.empty()) {
    return fmt::format("equal: {} elements of {} parameters on {} engine ranks\n",
                       count_text(found.elements), count_text(found.parameters),
                       found.engine_ranks);
  }
  std::string text =
      fmt::format("DIFFERENT: {} of {} elements, in {} of {} parameters on {} engine ranks\n",
                  count_text(elements_different(found)), count_text(found.elements),
                  count_text(static_cast<std::int64_t>(found.differences.size())),
                  count_text(found.parameters), found.engine_ranks);
  if (found.version_a != found.version_b) {
    text += fmt::format("A is at version {}, B at version {}\n", found.version_a, found.version_b);
  }
  const ParameterDifference& first = found.differences.front();
  text += fmt::format("first: engine {}, {}, element {} at [{}]{}\n", first.engine, first.parameter,
                      first.first_different, fmt::join(index_of(first), ", "),
                      first.tensor.empty() ? "" : ", which " + first.tensor + " feeds");
  text += element_line("A", first.dtype, first.a) + element_line("B", first.dtype, first.b);
  Table table({{"engine", Table::Align::right},
               {"different", Table::Align::right},
               {"elements", Table::Align::right},
               {"parameter"}});
  for (std::size_t i = 0; i < std::min(kRowsMax, found.differences.size()); ++i) {
    const ParameterDifference& one = found.differences[i];
    table.add({std::to_string(one.engine), count_text(one.elements_different),
               count_text(one.elements), one.parameter});
  }
  text += table.text(2);
  if (found.differences.size() > kRowsMax) {
    text += fmt::format("  and {} more; --json lists all\n", found.differences.size() - kRowsMax);
  }
  return text;
}

int run_verify(const VerifyRequest& request, bool json) {
  const RunComparison found = compare(request);
  if (json) {
    print_json(json_of(request, found));
  } else {
    print_text(text_of(found));
  }
  return found.differences.empty() ? kExitDone : kExitFailed;
}

}  // namespace

void register_verify(CLI::App& app, Invocation& invocation) {
  const auto request = std::make_shared<VerifyRequest>();
  CLI::App* command = app.add_subcommand(
      "verify", "Compare two runs, or a run and a checkpoint, and show where they differ first");
  command->add_option("A", request->a, "Folder that --dump wrote, or of a checkpoint")->required();
  command->add_option("B", request->b, "Another; one of both is a run")->required();
  command->add_flag("--json", invocation.json, "Print JSON");
  command->callback([=, &invocation] {
    invocation.run = [=, json = invocation.json] { return run_verify(*request, json); };
  });
}

}  // namespace crossmesh::cli
