// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/digest_mode.h"

#include <array>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 3> kModes = {"off", "sampled", "on"};

}  // namespace

std::string_view name_of(DigestMode mode) { return kModes[static_cast<std::size_t>(mode)]; }

DigestMode digest_mode_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kModes.size(); ++i) {
    if (kModes[i] == name) return static_cast<DigestMode>(i);
  }
  throw Error(ErrorCode::invalid_argument, "session: no such digest mode")
      .with("mode", name)
      .with("modes", fmt::format("{}", fmt::join(kModes, ", ")));
}

bool is_digested(DigestMode mode, int tensor, std::int64_t version) {
  if (mode == DigestMode::sampled) return (tensor + version % kDigestPeriod) % kDigestPeriod == 0;
  return mode == DigestMode::on;
}

}  // namespace crossmesh
