// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/message.h"

#include <gtest/gtest.h>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

std::string text_of_failure(std::span<const std::uint8_t> bytes) {
  try {
    decode(bytes);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(Message, every_kind_reads_back) {
  for (int k = 0; k <= static_cast<int>(MessageKind::returned); ++k) {
    const Message sent{static_cast<MessageKind>(k), 3, {{"n", 7}, {"s", "x"}}};
    const Message got = decode(encode(sent));
    EXPECT_EQ(got.kind, sent.kind);
    EXPECT_EQ(got.rank, 3);
    EXPECT_EQ(got.body, sent.body);
  }
}

TEST(Message, malformed_bytes_are_refused_by_name) {
  EXPECT_NE(text_of_failure({}), "");
  EXPECT_NE(text_of_failure(std::vector<std::uint8_t>(1'000'000, 0x81)), "") << "a deep array";
  EXPECT_EQ(text_of_failure(nlohmann::json::to_cbor(nlohmann::json(7))),
            "receive: malformed message: not a CBOR map");
  const auto of = [](const nlohmann::json& j) {
    return text_of_failure(nlohmann::json::to_cbor(j));
  };
  EXPECT_EQ(of({{"v", 1}}), "receive: malformed message: another schema version\n  expected  2");
  EXPECT_EQ(of({{"v", 2}, {"kind", "x"}, {"rank", 0}, {"body", nlohmann::json::object()}}),
            "receive: malformed message: unknown kind\n  kind  x");
}

TEST(Message, no_mutated_byte_crashes) {
  const std::vector<std::uint8_t> good = encode({MessageKind::start, 1, {{"version", 5}}});
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int b = 0; b < 256; ++b) {
      std::vector<std::uint8_t> bad = good;
      bad[i] = static_cast<std::uint8_t>(b);
      try {
        decode(bad);
      } catch (const Error&) {
      }
    }
    EXPECT_NE(text_of_failure(std::span(good).first(i)), "") << i;
  }
}

TEST(Message, a_missing_or_mistyped_field_is_named) {
  const Message message{MessageKind::start, 4, {{"version", "five"}}};
  try {
    field<std::int64_t>(message, "version");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "receive: malformed message: a field has another type\n  message  start\n  rank  4\n"
              "  field  version\n  type  string");
  }
  EXPECT_THROW(field<std::int64_t>(message, "attempt"), Error);
}

}  // namespace
}  // namespace crossmesh
