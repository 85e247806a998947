// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

// Ranks whose bytes the text shows one by one.
constexpr std::size_t kRanksShown = 16;

using Text = std::back_insert_iterator<std::string>;

void explain_ranks(Text text, std::string_view what, const std::vector<std::int64_t>& bytes) {
  const std::int64_t sum = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  const std::int64_t most = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  const double mean =
      bytes.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(bytes.size());
  fmt::format_to(text, "{}: most {} bytes, {:.3f} of the mean\n", what, most,
                 sum == 0 ? 0 : static_cast<double>(most) / mean);
  for (std::size_t rank = 0; rank < std::min(bytes.size(), kRanksShown); ++rank) {
    fmt::format_to(text, "  rank {}  {}\n", rank, bytes[rank]);
  }
  if (bytes.size() > kRanksShown) {
    fmt::format_to(text, "  and {} more ranks\n", bytes.size() - kRanksShown);
  }
}

}  // namespace

Fingerprint fingerprint(const Schedule& schedule) {
  FingerprintBuilder builder;
  builder.add(fingerprint(schedule.plan));
  builder.add(static_cast<std::int64_t>(schedule.options.route));
  builder.add(schedule.options.staging_bytes_max).add(schedule.options.fallback_bytes_max);
  builder.add(static_cast<std::int64_t>(schedule.order.size()));
  for (const int instance : schedule.order) builder.add(instance);
  builder.add(static_cast<std::int64_t>(schedule.groups.size()));
  for (const Group& group : schedule.groups) {
    builder.add(group.name).add(group.first).add(group.last);
  }
  builder.add(schedule.staging_slot_bytes).add(schedule.staging_slot_count);
  for (const int rotation : schedule.rotation) builder.add(rotation);
  return builder.finish();
}

std::string explain(const Schedule& schedule) {
  std::string out;
  Text text = std::back_inserter(out);
  fmt::format_to(text, "schedule of {}: {} groups, {}\n", schedule.plan.source.model,
                 schedule.groups.size(),
                 schedule.options.route == Route::direct ? "direct" : "packed");
  for (const Group& group : schedule.groups) {
    fmt::format_to(text, "  {}  {} instances\n", group.name, group.last - group.first);
  }
  if (schedule.staging_slot_count > 0) {
    fmt::format_to(text, "staging: {} slots of {} bytes on each source rank\n",
                   schedule.staging_slot_count, schedule.staging_slot_bytes);
  }
  const Totals sums = totals(schedule);
  fmt::format_to(text, "bytes: model {}, unique {}, needed {}, by the fallback {}\n",
                 sums.bytes_model, sums.bytes_unique, sums.bytes_needed, sums.bytes_fallback);
  fmt::format_to(text, "copies: {}\n", sums.copies);
  explain_ranks(text, "egress", sums.egress_bytes);
  explain_ranks(text, "ingress", sums.ingress_bytes);
  return out;
}

}  // namespace crossmesh
