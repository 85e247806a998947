// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_part.h"

#include <charconv>
#include <chrono>
#include <set>

#include "cli/format.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

struct SideRank {
  Side side = Side::source;
  int rank = 0;
};

SideRank parse_part(const Schedule& schedule, const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string side = text.substr(0, colon);
  const bool is_trainer = side == "trainer";
  const char* end = text.data() + text.size();
  int rank = -1;
  const bool is_number = colon != std::string::npos &&
                         std::from_chars(text.data() + colon + 1, end, rank).ptr == end &&
                         rank >= 0;
  if (!is_number || (!is_trainer && side != "engine")) {
    throw Error(ErrorCode::invalid_argument, "plan: this is no rank of a side")
        .with("part", text)
        .hint("trainer:0 or engine:3");
  }
  const int count = is_trainer ? schedule.plan.source.rank_count : schedule.plan.target.rank_count;
  if (rank >= count) {
    throw Error(ErrorCode::invalid_argument, "plan: the side has fewer ranks")
        .with("part", text)
        .with("ranks", count);
  }
  return {is_trainer ? Side::source : Side::target, rank};
}

std::int64_t bytes_of_step(const Plan& plan, const Step& step) {
  const PlanInstance& instance = plan.instances[static_cast<std::size_t>(step.instance)];
  std::int64_t elements = 1;
  for (const std::int64_t count : step.counts) elements *= count;
  return bytes_of(source_dtype(plan, instance), elements).value_or(0);
}

}  // namespace

PartReport part_of(const Schedule& schedule, const std::string& text) {
  const SideRank which = parse_part(schedule, text);
  const auto begin = std::chrono::steady_clock::now();
  const RankPart part = expand(schedule, which.side, which.rank);
  PartReport report;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.side = which.side == Side::source ? "trainer" : "engine";
  report.rank = which.rank;
  std::set<int> peers;
  for (const auto& steps : part.steps_of_group) {
    report.copies += std::ssize(steps);
    for (const Step& step : steps) {
      report.bytes += bytes_of_step(schedule.plan, step);
      peers.insert(step.peer);
    }
  }
  report.peers = std::ssize(peers);
  return report;
}

nlohmann::ordered_json json_of(const PartReport& part) {
  return {{"side", part.side},   {"rank", part.rank},   {"copies", part.copies},
          {"bytes", part.bytes}, {"peers", part.peers}, {"seconds", part.seconds}};
}

std::string text_of(const PartReport& part) {
  return fmt::format("{} {}: {} copies, {}, {} peers, expanded in {}", part.side, part.rank,
                     count_text(part.copies), bytes_text(part.bytes), part.peers,
                     seconds_text(part.seconds));
}

}  // namespace crossmesh::cli
