// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/fingerprint.h"

#define XXH_STATIC_LINKING_ONLY  // the streaming state by value
#include <xxhash.h>

#include <charconv>

#include <fmt/format.h>

namespace crossmesh {

struct FingerprintBuilder::State {
  XXH3_state_t xxh;
};

FingerprintBuilder::FingerprintBuilder() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

FingerprintBuilder::~FingerprintBuilder() = default;

FingerprintBuilder& FingerprintBuilder::add(std::int64_t value) {
  XXH3_128bits_update(&state_->xxh, &value, sizeof value);
  return *this;
}

FingerprintBuilder& FingerprintBuilder::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  XXH3_128bits_update(&state_->xxh, text.data(), text.size());
  return *this;
}

FingerprintBuilder& FingerprintBuilder::add(std::span<const std::int64_t> values) {
  add(static_cast<std::int64_t>(values.size()));
  XXH3_128bits_update(&state_->xxh, values.data(), values.size_bytes());
  return *this;
}

FingerprintBuilder& FingerprintBuilder::add(const Fingerprint& part) {
  XXH3_128bits_update(&state_->xxh, &part.high, sizeof part.high);
  XXH3_128bits_update(&state_->xxh, &part.low, sizeof part.low);
  return *this;
}

Fingerprint FingerprintBuilder::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

std::string to_string(const Fingerprint& f) { return fmt::format("{:016x}{:016x}", f.high, f.low); }

std::optional<Fingerprint> fingerprint_from_text(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Fingerprint f;
  const auto read = [](std::string_view part, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + 16, value, 16);
    return error == std::errc() && end == part.data() + 16;
  };
  if (!read(text.substr(0, 16), f.high) || !read(text.substr(16), f.low)) return std::nullopt;
  return f;
}

}  // namespace crossmesh
