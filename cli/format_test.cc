// SPDX-License-Identifier: Apache-2.0
#include "cli/format.h"

#include <gtest/gtest.h>

#include "cli/progress.h"

namespace crossmesh::cli {
namespace {

TEST(Format, bytes_have_three_digits_and_the_largest_unit_that_fits) {
  struct Row {
    const char* name;
    std::int64_t bytes;
    const char* expected;
  };
  for (const Row& row :
       {Row{"nothing", 0, "0 B"}, Row{"the last plain one", 1023, "1023 B"},
        Row{"the first binary unit", 1024, "1.00 KiB"}, Row{"tens", 64 * 1024, "64.0 KiB"},
        Row{"hundreds", 700 * 1024, "700 KiB"},
        Row{"a rounding that reaches the next unit", 1024 * 1024 - 1, "1.00 MiB"},
        Row{"a model", 1'192'099'840, "1.11 GiB"}, Row{"a difference", -2048, "-2.00 KiB"},
        Row{"the largest", INT64_MAX, "8.00 EiB"}}) {
    EXPECT_EQ(bytes_text(row.bytes), row.expected) << row.name;
  }
}

TEST(Format, seconds_rates_and_counts) {
  EXPECT_EQ(seconds_text(0), "0.00 us");
  EXPECT_EQ(seconds_text(12.34e-6), "12.3 us");
  EXPECT_EQ(seconds_text(4.567e-3), "4.57 ms");
  EXPECT_EQ(seconds_text(0.9999), "1.00 s");
  EXPECT_EQ(seconds_text(123.4), "123 s");
  EXPECT_EQ(rate_text(9.48e9), "9.48 GB/s");
  EXPECT_EQ(rate_text(12.3e6), "12.3 MB/s");
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(-1234567), "-1,234,567");
}

TEST(Format, sizes_are_read_with_their_units_and_anything_else_is_nothing) {
  struct Row {
    const char* text;
    std::optional<std::int64_t> expected;
  };
  for (const Row& row :
       {Row{"65536", 65536}, Row{"0", 0}, Row{"7B", 7}, Row{"64KiB", 65536}, Row{"64 KiB", 65536},
        Row{"1.5GiB", 1'610'612'736}, Row{"2MB", 2'000'000}, Row{"3TiB", 3'298'534'883'328},
        Row{"", std::nullopt}, Row{"KiB", std::nullopt}, Row{".5KiB", std::nullopt},
        Row{"1.2.3KiB", std::nullopt}, Row{"-1", std::nullopt}, Row{"1.5", std::nullopt},
        Row{"1k", std::nullopt}, Row{"1KiB ", std::nullopt}, Row{"1e9", std::nullopt},
        Row{"99999999999999999999", std::nullopt}, Row{"9999999TiB", std::nullopt}}) {
    EXPECT_EQ(size_from_text(row.text), row.expected) << row.text;
  }
}

TEST(Format, a_table_pads_its_columns_and_leaves_no_trailing_blanks) {
  Table table({{"name"}, {"bytes", Table::Align::right}, {"note"}});
  table.add({"a", "12,345", ""});
  table.add({"longer", "6", "cast"});
  EXPECT_EQ(table.text(2),
            "  name     bytes  note\n"
            "  a       12,345\n"
            "  longer       6  cast\n");
}

TEST(Format, facts_stand_in_one_column) {
  EXPECT_EQ(facts_text({{"a", "1"}, {"long", "2"}}), "a     1\nlong  2\n");
}

TEST(Progress, a_bar_shows_part_amount_rate_and_what_is_left) {
  EXPECT_EQ(bar_text({"writing", 1 << 20, 4 << 20, 0.5, Progress::Unit::bytes}),
            "writing  [#######.......................]  25%  1.00 MiB  2.10 MB/s  eta 1.50 s");
  EXPECT_EQ(bar_text({"moving", 3, 3, 1, Progress::Unit::steps}),
            "moving  [##############################] 100%  3 of 3");
  EXPECT_EQ(bar_text({"moving", 0, 0, 0, Progress::Unit::steps}),
            "moving  [..............................]   0%  0 of 0");
}

}  // namespace
}  // namespace crossmesh::cli
