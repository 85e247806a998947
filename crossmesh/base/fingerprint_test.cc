// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/fingerprint.h"

#include <gtest/gtest.h>

namespace crossmesh {
namespace {

TEST(Fingerprint, borders_between_fields_count) {
  const auto of = [](std::string_view a, std::string_view b) {
    return FingerprintBuilder().add(a).add(b).finish();
  };
  EXPECT_NE(of("ab", "c"), of("a", "bc"));
  EXPECT_EQ(of("ab", "c"), of("ab", "c"));
}

TEST(Fingerprint, text_reads_back) {
  const Fingerprint f = FingerprintBuilder().add(std::int64_t{7}).finish();
  EXPECT_EQ(fingerprint_from_text(to_string(f)), f);
  EXPECT_EQ(fingerprint_from_text("xyz"), std::nullopt);
  EXPECT_EQ(fingerprint_from_text(std::string(32, 'g')), std::nullopt);
}

}  // namespace
}  // namespace crossmesh
