// SPDX-License-Identifier: Apache-2.0
// What `crossmesh move` reports: gathered round by round, the same on every rank.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "crossmesh/schedule/schedule.h"
#include "crossmesh/session/session.h"

namespace crossmesh::cli {

struct MoveOptions;

double median(std::vector<double> values);  // 0 for none

class MoveResult {
 public:
  // `moved` has each rank's {bytes, fallback, staging, digest_bytes, digest_seconds}.
  void add_update(const UpdateReport& report, const std::vector<nlohmann::json>& moved,
                  int trainer_count);
  void add_checks(const std::vector<nlohmann::json>& checks, double seconds);
  void add_floor(double seconds) { floor_seconds_.push_back(seconds); }
  // Each trainer's {read, held}.
  void add_sources(const std::vector<nlohmann::json>& sources);
  // Of each rank, how it took from its peers.
  void add_ways(const std::vector<nlohmann::json>& ways_of_rank);

  nlohmann::ordered_json to_json(const MoveOptions& options, const Schedule& schedule) const;

 private:
  nlohmann::ordered_json iterations_ = nlohmann::ordered_json::array();
  std::vector<double> seconds_;
  std::vector<double> floor_seconds_;
  std::vector<double> digest_bytes_;            // of all engines
  std::vector<double> engine_digest_seconds_;   // of the slowest
  std::vector<double> trainer_digest_seconds_;  // of the slowest
  std::vector<double> check_seconds_;
  std::int64_t elements_checked_ = 0;
  std::int64_t parameters_wrong_ = 0;
  std::string first_fault_;
  std::int64_t staging_bytes_peak_ = 0;
  nlohmann::ordered_json ways_ = nlohmann::ordered_json::array();
  std::vector<std::int64_t> source_bytes_read_;
  std::vector<std::int64_t> source_bytes_held_;
};

}  // namespace crossmesh::cli
