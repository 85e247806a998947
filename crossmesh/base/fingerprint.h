// SPDX-License-Identifier: Apache-2.0
// The identity of a structure: a 128-bit hash over its fields in a fixed order. It is
// not a digest of weight values, and not a defence against a forger.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace crossmesh {

struct Fingerprint {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Fingerprint&) const = default;
};

// 32 lower-case hexadecimal digits.
std::string to_string(const Fingerprint& fingerprint);
std::optional<Fingerprint> fingerprint_from_text(std::string_view text);

// Streams fields into a Fingerprint. Each field is prefixed by its length where that varies,
// so that ("ab", "c") and ("a", "bc") differ. Source: XXH3, 128 bits.
class FingerprintBuilder {
 public:
  FingerprintBuilder();
  ~FingerprintBuilder();
  FingerprintBuilder(const FingerprintBuilder&) = delete;
  FingerprintBuilder& operator=(const FingerprintBuilder&) = delete;

  FingerprintBuilder& add(std::int64_t value);
  FingerprintBuilder& add(std::string_view text);
  FingerprintBuilder& add(std::span<const std::int64_t> values);
  FingerprintBuilder& add(const Fingerprint& part);
  Fingerprint finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct FingerprintHash {
  std::size_t operator()(const Fingerprint& f) const { return static_cast<std::size_t>(f.low); }
};

}  // namespace crossmesh
