// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_identity.h"

#include <charconv>

#include "crossmesh/base/error.h"
#include "crossmesh/base/fingerprint.h"

namespace crossmesh::cli {
namespace {

constexpr int kRanksMax = 1'000'000;
constexpr int kPortMax = 65'535;

// An empty variable says as much as none.
std::optional<std::string> value_of(const Environment& environment, const char* variable) {
  std::optional<std::string> value = environment(variable);
  return value && !value->empty() ? value : std::nullopt;
}

std::string needed(const Environment& environment, const char* variable, const char* flag) {
  if (const auto value = value_of(environment, variable)) return *value;
  throw Error(ErrorCode::invalid_argument, "identify rank: a variable is missing")
      .with("variable", variable)
      .hint(fmt::format("a launcher such as torchrun sets it; by hand, give {}", flag));
}

struct Range {
  int first = 0;
  int last = 0;
};

int number_of(const char* variable, const std::string& text, Range range) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < range.first || value > range.last) {
    throw Error(ErrorCode::invalid_argument, "identify rank: a variable is no number in its range")
        .with("variable", variable)
        .with("value", text)
        .with("expected", fmt::format("{} to {}", range.first, range.last));
  }
  return value;
}

// Ranks find each other on their own host only.
void check_one_host(const Environment& environment, int world_size) {
  const auto text = value_of(environment, "LOCAL_WORLD_SIZE");
  if (!text) return;
  const int local = number_of("LOCAL_WORLD_SIZE", *text, {1, kRanksMax});
  if (local == world_size) return;
  throw Error(ErrorCode::unsupported, "identify rank: the job's ranks are not all on this host")
      .with("LOCAL_WORLD_SIZE", local)
      .with("WORLD_SIZE", world_size)
      .hint("start all ranks on one host");
}

std::string session_of_master(const Environment& environment) {
  const std::string address = needed(environment, "MASTER_ADDR", "--session");
  const std::string port = needed(environment, "MASTER_PORT", "--session");
  FingerprintBuilder name;
  name.add("crossmesh rank").add("MASTER_ADDR").add(address);
  name.add("MASTER_PORT").add(std::int64_t{number_of("MASTER_PORT", port, {1, kPortMax})});
  if (const auto run = value_of(environment, "TORCHELASTIC_RUN_ID")) {
    name.add("TORCHELASTIC_RUN_ID").add(*run);
  }
  return to_string(name.finish());
}

}  // namespace

RankIdentity identify_rank(const IdentityFlags& flags, const Environment& environment) {
  RankIdentity identity;
  identity.rank =
      flags.rank ? *flags.rank
                 : number_of("RANK", needed(environment, "RANK", "--rank"), {0, kRanksMax - 1});
  identity.world_size = flags.world_size;
  if (!flags.world_size) {
    auto text = value_of(environment, "WORLD_SIZE");
    if (!text && !flags.rank) text = needed(environment, "WORLD_SIZE", "--world-size");
    if (text) {
      identity.world_size = number_of("WORLD_SIZE", *text, {1, kRanksMax});
      check_one_host(environment, *identity.world_size);
    }
  }
  if (identity.world_size && identity.rank >= *identity.world_size) {
    throw Error(ErrorCode::invalid_argument, "identify rank: the rank is outside the job")
        .with(flags.rank ? "--rank" : "RANK", identity.rank)
        .with(flags.world_size ? "--world-size" : "WORLD_SIZE", *identity.world_size)
        .hint("ranks count from 0");
  }
  identity.session = flags.session ? *flags.session : session_of_master(environment);
  return identity;
}

void check_world_size(const RankIdentity& identity, const RankCounts& counts) {
  const int ranks = counts.trainers + counts.engines;
  if (identity.world_size && *identity.world_size != ranks) {
    throw Error(ErrorCode::invalid_argument, "rank: the job is not as large as its specs")
        .with("world size", *identity.world_size)
        .with("trainer ranks", counts.trainers)
        .with("engine ranks", counts.engines)
        .hint(fmt::format("start {} ranks, each with WORLD_SIZE or --world-size {}", ranks, ranks));
  }
  if (identity.rank >= ranks) {
    throw Error(ErrorCode::invalid_argument, "rank: the rank is outside the job")
        .with("rank", identity.rank)
        .with("trainer ranks", counts.trainers)
        .with("engine ranks", counts.engines)
        .hint("ranks count from 0");
  }
}

}  // namespace crossmesh::cli
