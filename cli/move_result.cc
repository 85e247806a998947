// SPDX-License-Identifier: Apache-2.0
#include "cli/move_result.h"

#include <algorithm>

#include "cli/move.h"

namespace crossmesh::cli {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void MoveResult::add_update(const UpdateReport& report, const std::vector<nlohmann::json>& moved,
                            int trainer_count) {
  std::int64_t bytes = 0, fallback = 0, digested = 0;
  double engine_seconds = 0, trainer_seconds = 0;
  for (std::size_t rank = 0; rank < moved.size(); ++rank) {
    staging_bytes_peak_ =
        std::max(staging_bytes_peak_, moved[rank].at("staging").get<std::int64_t>());
    const bool is_trainer = static_cast<int>(rank) < trainer_count;
    double& slowest = is_trainer ? trainer_seconds : engine_seconds;
    slowest = std::max(slowest, moved[rank].at("digest_seconds").get<double>());
    if (is_trainer) continue;
    digested += moved[rank].at("digest_bytes").get<std::int64_t>();
    bytes += moved[rank].at("bytes").get<std::int64_t>();
    fallback += moved[rank].at("fallback").get<std::int64_t>();
  }
  iterations_.push_back({{"version", report.version},
                         {"attempt", report.attempt},
                         {"epoch", report.epoch},
                         {"seconds", report.seconds},
                         {"bytes", bytes},
                         {"bytes_fallback", fallback},
                         {"bytes_digested", digested}});
  digest_bytes_.push_back(static_cast<double>(digested));
  engine_digest_seconds_.push_back(engine_seconds);
  trainer_digest_seconds_.push_back(trainer_seconds);
  seconds_.push_back(report.seconds);
}

void MoveResult::add_checks(const std::vector<nlohmann::json>& checks, double seconds) {
  check_seconds_.push_back(seconds);
  for (const nlohmann::json& check : checks) {
    if (check.is_null()) continue;
    elements_checked_ += check.at("elements").get<std::int64_t>();
    parameters_wrong_ += check.at("wrong").get<std::int64_t>();
    if (first_fault_.empty()) first_fault_ = check.at("fault").get<std::string>();
  }
}

void MoveResult::add_sources(const std::vector<nlohmann::json>& sources) {
  for (const nlohmann::json& source : sources) {
    if (source.is_null()) continue;
    source_bytes_read_.push_back(source.at("read"));
    source_bytes_held_.push_back(source.at("held"));
  }
}

void MoveResult::add_ways(const std::vector<nlohmann::json>& ways_of_rank) {
  for (const nlohmann::json& ways : ways_of_rank) {
    for (const nlohmann::json& one : ways) {
      ways_.push_back({{"trainer", one.at("trainer")},
                       {"engine", one.at("engine")},
                       {"way", one.at("way")},
                       {"bytes", one.at("bytes")},
                       {"bytes_per_second", one.at("bytes_per_second")},
                       {"why_not_attach", one.at("why_not_attach")}});
    }
  }
}

nlohmann::ordered_json MoveResult::to_json(const MoveOptions& options,
                                           const Schedule& schedule) const {
  const Totals sums = totals(schedule);
  const double update = median(seconds_);
  const double floor = median(floor_seconds_);
  nlohmann::ordered_json json;
  json["verified"] = parameters_wrong_ == 0 && elements_checked_ > 0;
  json["elements_checked"] = elements_checked_;
  if (!first_fault_.empty()) json["fault"] = first_fault_;
  json["transport"] = options.transport;
  json["colocate"] = options.colocate;
  json["route"] = options.request.schedule.route == Route::packed ? "packed" : "direct";
  json["iterations"] = iterations_;
  json["bytes_needed"] = sums.bytes_needed;
  json["bytes_unique"] = sums.bytes_unique;
  json["bytes_fallback"] = sums.bytes_fallback;
  json["seconds_median"] = update;
  json["floor"] = options.floor == FloorKind::runs     ? nlohmann::ordered_json("runs")
                  : options.floor == FloorKind::memcpy ? nlohmann::ordered_json("memcpy")
                                                       : nlohmann::ordered_json();
  json["floor_seconds_median"] =
      floor_seconds_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(floor);
  json["ratio_to_floor"] = floor_seconds_.empty() || update <= 0
                               ? nlohmann::ordered_json()
                               : nlohmann::ordered_json(floor / update);
  const double in_update = median(engine_digest_seconds_);
  json["digest"] = {{"mode", name_of(options.digest)},
                    {"bytes_median", static_cast<std::int64_t>(median(digest_bytes_))},
                    {"engine_seconds_median", in_update},
                    {"engine_share", update <= 0 ? 0 : in_update / update},
                    {"trainer_seconds_median", median(trainer_digest_seconds_)}};
  json["verify_seconds_median"] = median(check_seconds_);
  json["staging_bytes_peak"] = staging_bytes_peak_;
  json["source_bytes_read"] = source_bytes_read_;
  json["source_bytes_held"] = source_bytes_held_;
  json["ways"] = ways_;
  return json;
}

}  // namespace crossmesh::cli
