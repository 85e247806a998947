// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_text.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "cli/format.h"
#include "crossmesh/base/error.h"
#include "crossmesh/base/glob.h"

namespace crossmesh::cli {
namespace {

constexpr int kCopiesShownMax = 200;

template <typename T>
const T& at(const std::vector<T>& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// The name with its layer number, the first segment of digits, as `*`.
std::string without_layer(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view segment = name.substr(begin, end - begin);
    if (!segment.empty() && segment.find_first_not_of("0123456789") == std::string_view::npos) {
      return std::string(name.substr(0, begin)) + "*" + std::string(name.substr(end));
    }
    begin = end + 1;
  }
  return std::string(name);
}

struct Parts {
  const Plan& plan;
  const PlanInstance& instance;

  const Instance& source() const { return at(plan.source.instances, instance.source_instance); }
  const Instance& target() const { return at(plan.target.instances, instance.target_instance); }
  const TensorInfo& tensor() const { return at(plan.target.tensors, target().tensor); }
  const Parameter& parameter() const { return at(plan.target.parameters, target().parameter); }
  // Requires: the instance is not opaque.
  const PlanClass& plan_class() const { return at(plan.classes, instance.plan_class); }
  const std::vector<int>& source_role_of_rank() const {
    return at(plan.source.bindings, source().binding).role_of_rank;
  }
  const std::vector<int>& target_role_of_rank() const {
    return at(plan.target.bindings, target().binding).role_of_rank;
  }
};

std::string shape_text(const TensorInfo& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

std::string note_of(const Parts& parts) {
  if (parts.instance.opaque) {
    return "opaque: " + at(parts.plan.target.reasons, parts.target().opaque_reason);
  }
  const DType source = source_dtype(parts.plan, parts.instance);
  const DType target = target_dtype(parts.plan, parts.instance);
  if (source == target) return "";
  return fmt::format("cast {} to {}", name_of(source), name_of(target));
}

std::int64_t element_total(const Copy& copy) {
  std::int64_t count = 1;
  for (const std::int64_t extent : copy.counts) count *= extent;
  return count;
}

struct Need {
  std::int64_t copies = 0;
  std::int64_t bytes = 0;
};

// What one instance needs over all engine ranks; an opaque tensor goes whole to each.
Need need_of(const Parts& parts) {
  Need need;
  const DType dtype = source_dtype(parts.plan, parts.instance);
  const std::int64_t whole = byte_count(at(parts.plan.source.tensors, parts.source().tensor));
  for (const int role : parts.target_role_of_rank()) {
    if (role < 0) continue;
    if (parts.instance.opaque) {
      need.bytes += whole;
      continue;
    }
    const PlanClass& plan_class = parts.plan_class();
    const int last = at(plan_class.first_copy_of_target_role, role + 1);
    for (int c = at(plan_class.first_copy_of_target_role, role); c < last; ++c) {
      ++need.copies;
      need.bytes += bytes_of(dtype, element_total(at(plan_class.copies, c))).value_or(0);
    }
  }
  return need;
}

// -- Kinds of tensors, layers taken together ----------------------------------------------------

struct Kind {
  Parts parts;
  std::int64_t count = 0;
  Need need;
};

std::string kinds_text(const Schedule& schedule) {
  using Key = std::tuple<std::string, std::string, int, int>;
  std::map<Key, std::size_t> kind_by_key;
  std::vector<Kind> kinds;
  for (const PlanInstance& instance : schedule.plan.instances) {
    const Parts parts{schedule.plan, instance};
    Key key{without_layer(parts.tensor().name), without_layer(parts.parameter().name),
            instance.plan_class, instance.opaque ? parts.target().opaque_reason : -1};
    const auto [found, is_new] = kind_by_key.try_emplace(std::move(key), kinds.size());
    if (is_new) kinds.push_back({parts, 0, need_of(parts)});
    ++kinds[found->second].count;
  }
  using Align = Table::Align;
  Table table({{"tensor"},
               {"times", Align::right},
               {"dtype"},
               {"shape"},
               {"parameter"},
               {"copies", Align::right},
               {"bytes", Align::right},
               {"note"}});
  for (const Kind& kind : kinds) {
    const TensorInfo& tensor = kind.parts.tensor();
    const DType dtype = source_dtype(schedule.plan, kind.parts.instance);
    const bool is_single = kind.count == 1;
    const std::string& parameter = kind.parts.parameter().name;
    table.add({is_single ? tensor.name : without_layer(tensor.name), std::to_string(kind.count),
               std::string(name_of(dtype)), shape_text(tensor),
               is_single ? parameter : without_layer(parameter),
               count_text(kind.count * kind.need.copies), bytes_text(kind.count * kind.need.bytes),
               note_of(kind.parts)});
  }
  return table.text();
}

// -- Single tensors, every copy -----------------------------------------------------------------

std::string copies_text(const Schedule& schedule, const Parts& parts) {
  using Align = Table::Align;
  Table table({{"trainer", Align::right},
               {"engine", Align::right},
               {"elements"},
               {"source place"},
               {"target place"},
               {"bytes", Align::right}});
  const DType dtype = source_dtype(schedule.plan, parts.instance);
  const PlanClass& plan_class = parts.plan_class();
  const std::vector<int>& roles = parts.target_role_of_rank();
  int shown = 0;
  int left_out = 0;
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    if (roles[rank] < 0) continue;
    const int last = at(plan_class.first_copy_of_target_role, roles[rank] + 1);
    for (int c = at(plan_class.first_copy_of_target_role, roles[rank]); c < last; ++c) {
      if (++shown > kCopiesShownMax) {
        ++left_out;
        continue;
      }
      const Copy& copy = at(plan_class.copies, c);
      const int holder =
          holder_of(schedule, parts.instance, copy.source_role, static_cast<int>(rank));
      const auto place = [](const View& view, std::int64_t offset) {
        return fmt::format("{} by {}", view.offset + offset, to_string(view.strides));
      };
      table.add({std::to_string(holder), std::to_string(rank), to_string(copy.counts),
                 place(copy.source, parts.source().offset),
                 place(copy.target, parts.target().offset),
                 bytes_text(bytes_of(dtype, element_total(copy)).value_or(0))});
    }
  }
  return table.text(2) + (left_out > 0 ? fmt::format("  and {} more copies\n", left_out) : "");
}

std::string tensors_text(const Schedule& schedule, const std::string& only) {
  std::string text;
  for (const PlanInstance& instance : schedule.plan.instances) {
    const Parts parts{schedule.plan, instance};
    if (!glob_matches(only, parts.tensor().name)) continue;
    if (!text.empty()) text += "\n";
    text += fmt::format("{}  {} {}  to {}\n", parts.tensor().name,
                        name_of(source_dtype(schedule.plan, instance)), shape_text(parts.tensor()),
                        parts.parameter().name);
    const std::string note = note_of(parts);
    if (!note.empty()) text += fmt::format("  {}\n", note);
    if (!instance.opaque) text += copies_text(schedule, parts);
  }
  return text;
}

std::string unused_text(const std::vector<Unused>& unused, const std::string& only) {
  std::string text;
  for (const Unused& tensor : unused) {
    if (only.empty() || glob_matches(only, tensor.name)) {
      text += fmt::format("  {}  {}\n", tensor.name, tensor.why);
    }
  }
  return text.empty() ? "" : "\nunused\n" + text;
}

// -- Totals -------------------------------------------------------------------------------------

// `1.11 GiB on each of 2 ranks`, or from the least to the most.
std::string spread_text(const std::vector<std::int64_t>& bytes) {
  if (bytes.empty()) return "none";
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  if (*least == *most) {
    return fmt::format("{} on each of {} ranks", bytes_text(*least), bytes.size());
  }
  return fmt::format("{} to {} on {} ranks", bytes_text(*least), bytes_text(*most), bytes.size());
}

std::string totals_text(const PlanReport& report) {
  const Totals& totals = report.totals;
  const PlanSeconds& seconds = report.seconds;
  std::vector<std::pair<std::string, std::string>> facts{
      {"model", report.model},
      {"trainer", fmt::format("{}, {} ranks", report.trainer, report.trainer_ranks)},
      {"engine", fmt::format("{}, {} ranks, {} replica{}", report.engine, report.engine_ranks,
                             report.replicas, report.replicas == 1 ? "" : "s")},
      {"tensors", fmt::format("{} in the checkpoint, {} parameters on an engine rank",
                              count_text(report.tensors), count_text(report.parameters))},
      {"plan", fmt::format("{} copies of {} classes, in {} groups", count_text(totals.copies),
                           report.classes, report.groups)},
      {"bytes", fmt::format("{} in the model, {} wanted, {} over all engine ranks",
                            bytes_text(totals.bytes_model), bytes_text(totals.bytes_unique),
                            bytes_text(totals.bytes_needed))},
      {"fallback", bytes_text(totals.bytes_fallback)},
      {"egress", spread_text(totals.egress_bytes)},
      {"ingress", spread_text(totals.ingress_bytes)},
      {"fingerprint", to_string(report.fingerprint)},
      {"time", fmt::format("{}: catalog {}, layout {}, compile {}, arrange {}",
                           seconds_text(seconds.total()), seconds_text(seconds.catalog),
                           seconds_text(seconds.layout), seconds_text(seconds.compile),
                           seconds_text(seconds.arrange))},
  };
  if (report.part) facts.emplace_back("part", text_of(*report.part));
  return facts_text(facts);
}

}  // namespace

PlanReport report_of(const Schedule& schedule, const Model& model, const Request& request,
                     const PlanSeconds& seconds) {
  const Plan& plan = schedule.plan;
  PlanReport report;
  report.model = model.config.architecture;
  report.trainer = request.trainer;
  report.engine = request.engine;
  report.trainer_ranks = plan.source.rank_count;
  report.engine_ranks = plan.target.rank_count;
  for (const int replica : plan.target.replica_of_rank) {
    report.replicas = std::max(report.replicas, replica + 1);
  }
  report.tensors = static_cast<std::int64_t>(model.catalog.tensors.size());
  for (std::size_t p = 0; p < plan.target.parameters.size(); ++p) {
    if (has_parameter(plan.target, 0, static_cast<int>(p))) ++report.parameters;
  }
  report.classes = static_cast<std::int64_t>(plan.classes.size());
  report.groups = static_cast<std::int64_t>(schedule.groups.size());
  report.totals = totals(schedule);
  report.unused = plan.unused;
  report.fingerprint = fingerprint(schedule);
  report.seconds = seconds;
  report.peak_rss_bytes = peak_rss_bytes();
  return report;
}

nlohmann::ordered_json json_of(const PlanReport& report) {
  nlohmann::ordered_json unused = nlohmann::ordered_json::array();
  for (const Unused& tensor : report.unused) {
    unused.push_back({{"name", tensor.name}, {"why", tensor.why}});
  }
  const PlanSeconds& seconds = report.seconds;
  return {{"model", report.model},
          {"trainer", report.trainer},
          {"engine", report.engine},
          {"trainer_ranks", report.trainer_ranks},
          {"engine_ranks", report.engine_ranks},
          {"replicas", report.replicas},
          {"tensors", report.tensors},
          {"parameters", report.parameters},
          {"classes", report.classes},
          {"groups", report.groups},
          {"copies", report.totals.copies},
          {"bytes_model", report.totals.bytes_model},
          {"bytes_unique", report.totals.bytes_unique},
          {"bytes_needed", report.totals.bytes_needed},
          {"bytes_fallback", report.totals.bytes_fallback},
          {"egress_bytes", report.totals.egress_bytes},
          {"ingress_bytes", report.totals.ingress_bytes},
          {"unused", std::move(unused)},
          {"part", report.part ? json_of(*report.part) : nlohmann::ordered_json()},
          {"fingerprint", to_string(report.fingerprint)},
          {"seconds",
           {{"catalog", seconds.catalog},
            {"layout", seconds.layout},
            {"compile", seconds.compile},
            {"arrange", seconds.arrange},
            {"total", seconds.total()}}},
          {"peak_rss_bytes", report.peak_rss_bytes}};
}

std::string text_of(const PlanReport& report, const Schedule& schedule, const std::string& only) {
  const std::string unused = unused_text(report.unused, only);
  if (only.empty()) return totals_text(report) + "\n" + kinds_text(schedule) + unused;
  const std::string tensors = tensors_text(schedule, only);
  if (tensors.empty() && unused.empty()) {
    throw Error(ErrorCode::invalid_argument, "plan: no tensor matches --only")
        .with("pattern", only);
  }
  return totals_text(report) + "\n" + tensors + unused;
}

}  // namespace crossmesh::cli
