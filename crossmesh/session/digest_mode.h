// SPDX-License-Identifier: Apache-2.0
// Which tensors an update digests. The rule is a function of the tensor and the version, so that
// both ends follow it without a word.
#pragma once

#include <cstdint>
#include <string_view>

namespace crossmesh {

enum class DigestMode : std::uint8_t {
  off,
  sampled,  // one tensor in kDigestPeriod, other ones with each version
  on,       // all
};

inline constexpr std::int64_t kDigestPeriod = 16;

std::string_view name_of(DigestMode mode);
DigestMode digest_mode_from_name(std::string_view name);  // Throws: invalid_argument

// Whether the update to `version` digests tensor `tensor` of the source layout. Ensures: sampled
// digests each tensor once in any kDigestPeriod versions that follow one another.
bool is_digested(DigestMode mode, int tensor, std::int64_t version);

}  // namespace crossmesh
