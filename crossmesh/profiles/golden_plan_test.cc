// SPDX-License-Identifier: Apache-2.0
// Every line of golden_plan.jsonl: what the old system's functions really returned. Where it is
// wrong, `right_answers` holds what is right instead, and says why.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/buffers.h"
#include "crossmesh/profiles/consumer_plan.h"
#include "crossmesh/profiles/groups.h"
#include "crossmesh/profiles/ownership.h"
#include "crossmesh/profiles/producer_pack.h"
#include "crossmesh/profiles/router.h"
#include "crossmesh/target/testing.h"
#include "tests/golden.h"

namespace crossmesh::profiles {
namespace {

using crossmesh::testing::json;

// A line, which prints as its name.
struct Line {
  json text;
};
void PrintTo(const Line& line, std::ostream* out) { *out << line.text["id"]; }

std::vector<Line> lines() {
  std::vector<Line> result;
  std::istringstream text(test_data("golden_plan.jsonl"));
  for (std::string line; std::getline(text, line);) result.push_back({json::parse(line)});
  return result;
}

struct RightAnswer {
  std::string why;
  json expected;  // merged over the recorded one; null takes a key away
};

json error_of(const std::string& part) { return {{"error", part}}; }

const std::map<std::string, RightAnswer>& right_answers() {
  static const std::map<std::string, RightAnswer> answers = {
      {"assign-021", {"no such consumer: not producer -1", error_of("no such consumer")}},
      {"assign-022", {"no such consumer: not producer 2 of 2", error_of("no such consumer")}},
      {"assign-023", {"no such consumer: not producer 10 of 4", error_of("no such consumer")}},
      {"groups-014",
       {"a digit of another script is a letter like any other",
        {{"groups", {{"a.\u0663.w"}, {"a.3.v"}}}}}},
      {"router-018",
       {"a class that is none is an error that names it, and not an index error",
        {{"producer_for", {{error_of("owner class")}, {error_of("owner class")}}}}}},
      {"router-019",
       {"a negative class is none, and does not count from the end",
        {{"owners", {"error"}},
         {"producer_for", {{error_of("owner class")}, {error_of("owner class")}}}}}},
      {"producer_pack-004",
       {"refused too, in our words", error_of("the strides allow these sizes by a copy only")}},
      {"plan-005",
       {"a slice of no elements is refused: the two sides would place what follows differently",
        error_of("no elements")}},
      {"plan-033",
       {"a module with names in two groups is pulled in parts, not twice and whole",
        {{"chunks",
          {json::parse(R"({"owner":0,"seq":0,"scatters":[["a","weight","x"]],"keys":[["x",[]]],
             "layout":[[0,"bfloat16",4,[4]]],"pack_bytes":8,"materialize":["a"],"quant":[],
             "free":[0]})"),
           json::parse(R"({"owner":0,"seq":1,"scatters":[["a","weight","y"]],"keys":[["y",[]]],
             "layout":[[0,"bfloat16",4,[4]]],"pack_bytes":8,"materialize":[],"quant":["a"],
             "free":[1]})")}},
         {"serve_bytes", {8}}}}},
      {"plan-035",
       {"a name that feeds two modules reaches both",
        {{"chunks", {json::parse(R"({"owner":0,"seq":0,"scatters":[["a","p0","s"],["b","p1","s"]],
             "keys":[["s",[]]],"layout":[[0,"bfloat16",4,[4]]],"pack_bytes":8,
             "materialize":["a","b"],"quant":["a","b"],"free":[0]})")}}}}},
  };
  return answers;
}

json names_of(const std::vector<std::string>& names) { return names; }

Shape shape_of(const json& sizes) { return Shape(sizes.get<std::vector<std::int64_t>>()); }
DType dtype_of(const json& name) { return dtype_from_name(name.get<std::string>()).value(); }

std::string torch_name(DType dtype) {
  static const std::map<DType, std::string> names = {{DType::f8_e4m3, "float8_e4m3fn"},
                                                     {DType::f8_e5m2, "float8_e5m2"},
                                                     {DType::f16, "float16"},
                                                     {DType::bf16, "bfloat16"},
                                                     {DType::f32, "float32"},
                                                     {DType::u8, "uint8"},
                                                     {DType::i8, "int8"},
                                                     {DType::i64, "int64"},
                                                     {DType::f64, "float64"},
                                                     {DType::i32, "int32"}};
  return names.at(dtype);
}

json layout_json(const PackedLayout& layout) {
  json result = json::array();
  for (const PackedSlice& slice : layout.slices) {
    result.push_back({slice.offset_bytes, torch_name(slice.dtype), slice.size,
                      crossmesh::testing::numbers(slice.shape)});
  }
  return result;
}

template <typename Value>
Value value_or(const json& object, const char* key, Value fallback) {
  return !object.contains(key) || object[key].is_null() ? fallback : object[key].get<Value>();
}

RouterFacts facts_of(const json& input) {
  return {.producer_count = input["producers"],
          .consumer_count = input["consumers"],
          .workers_per_replica = value_or(input, "workers_per_replica", 0),
          .names = input["names"],
          .group_sizes = input["group_lens"],
          .owner_sets = value_or(input, "owner_sets", std::vector<std::vector<int>>()),
          .class_of_name = value_or(input, "name_owner_class", std::vector<int>())};
}

template <typename Call>
json attempt(const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    return {{"error", error.text()}};
  }
}

json run_assign(const json& input) {
  const Fleet fleet{input["producers"], input["consumers"]};
  if (input.contains("consumer")) return {{"block", producer_block(fleet, input["consumer"])}};
  json blocks = json::array();
  for (int c = 0; c < std::max(fleet.consumer_count, 1); ++c)
    blocks.push_back(producer_block(fleet, c));
  return {{"blocks", blocks}};
}

json run_router(const json& input) {
  const Router router(facts_of(input));
  json result = {{"class_of", json::array()},
                 {"owners", json::array()},
                 {"group_owners", json::array()},
                 {"producer_for", json::array()}};
  result["validate"] = attempt([&]() -> json {
    router.validate();
    return "ok";
  });
  for (const std::string& name : router.facts().names) {
    result["class_of"].push_back(router.class_of(name));
    const json owners = attempt([&]() -> json { return router.owners(name); });
    result["owners"].push_back(owners.is_object() ? json("error") : owners);
  }
  for (int g = 0; g < router.group_count(); ++g) {
    result["group_owners"].push_back(router.group_owners(g));
  }
  const int consumers = std::max(router.facts().consumer_count, 1);
  for (int c = 0; c < consumers; ++c) {
    json row = json::array();
    for (const std::string& name : router.facts().names) {
      row.push_back(attempt([&]() -> json { return router.producer_for(c, name); }));
    }
    result["producer_for"].push_back(row);
  }
  return result;
}

json run_consumer_id(const json& input) {
  const ConsumerIdentity identity =
      consumer_identity({.data_parallel_index = input["data_parallel_index"],
                         .rank = input["rank"],
                         .world_size = input["world_size"],
                         .world_size_across_dp = input["world_size_across_dp"],
                         .consumer_count = input["num_consumers"],
                         .replica_rank = input["replica_rank"],
                         .replica_count = input["num_replicas"]});
  return {{"consumer_id", identity.consumer},
          {"workers_per_replica", identity.workers_per_replica}};
}

json chunk_json(const Chunk& chunk, const std::vector<BakedModule>& modules) {
  json result = {{"owner", chunk.producer},
                 {"seq", chunk.sequence},
                 {"scatters", json::array()},
                 {"keys", json::array()},
                 {"layout", layout_json(chunk.layout)},
                 {"pack_bytes", chunk.layout.bytes},
                 {"materialize", json::array()},
                 {"quant", json::array()},
                 {"free", chunk.free}};
  const auto module_at = [&](int m) -> const BakedModule& {
    return modules.at(static_cast<std::size_t>(m));
  };
  for (const PlannedScatter& planned : chunk.scatters) {
    const Scatter& scatter =
        module_at(planned.module).scatters.at(static_cast<std::size_t>(planned.scatter));
    EXPECT_EQ(chunk.keys.at(static_cast<std::size_t>(planned.key)), scatter.key);
    result["scatters"].push_back(
        {module_at(planned.module).name, scatter.parameter, scatter.key.source});
  }
  for (const SliceKey& key : chunk.keys) {
    result["keys"].push_back({key.source, json::parse(key.calls)});
  }
  for (const int m : chunk.materialize) result["materialize"].push_back(module_at(m).name);
  for (const int m : chunk.process) result["quant"].push_back(module_at(m).name);
  return result;
}

json run_plan(const json& input) {
  std::vector<BakedModule> modules;
  for (const json& module : input["modules"]) {
    modules.push_back({module["module"], {}});
    for (const json& scatter : module["scatters"]) {
      modules.back().scatters.push_back({scatter["parameter"],
                                         {scatter["source"], scatter["chain"].dump()},
                                         shape_of(scatter["shape"]),
                                         dtype_of(scatter["dtype"])});
    }
  }
  const Router router(facts_of(input));
  const ConsumerPlan plan =
      plan_consumer(router, input["consumer"], modules,
                    value_or(input, "live_unbaked", std::vector<std::string>()));
  json result = {{"pre_free", plan.free_first},
                 {"chunks", json::array()},
                 {"serve_bytes", serve_bytes(plan, input["producers"])},
                 {"receive_slot_bytes", receive_slot_bytes(plan)}};
  for (const Chunk& chunk : plan.chunks) result["chunks"].push_back(chunk_json(chunk, modules));
  return result;
}

// The chain of one asked slice; an index after chunk or unbind picks from the parts.
int chain_of(ChainBook& book, const json& tensor, const json& calls) {
  int chain = book.start(dtype_of(tensor["dtype"]), tensor["shape"].get<std::vector<long>>());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    served_call(calls[i][0].get<std::string>());
    const Op op = crossmesh::testing::op_from_json(calls[i]);
    chain = yields_several(op.kind())
                ? book.apply_several(chain, op)[calls[++i][1][0].get<std::size_t>()]
                : book.apply(chain, op);
  }
  return chain;
}

json run_producer_pack(const json& input) {
  ChainBook book;
  std::vector<int> chains;
  for (const json& spec : input["specs"]) {
    chains.push_back(chain_of(book, input["tensors"][spec[0].get<std::string>()], spec[1]));
  }
  const PackedLayout layout = pack_slices(book, chains);
  return {{"layout", layout_json(layout)}, {"pack_bytes", layout.bytes}};
}

json run(const json& line) {
  const json& input = line["input"];
  const std::string kind = line["kind"];
  if (kind == "assign") return run_assign(input);
  if (kind == "router") return run_router(input);
  if (kind == "consumer_id") return run_consumer_id(input);
  if (kind == "buffer_alloc") {
    return {{"bytes", buffer_alloc_bytes(input["bytes"], input["presize"])}};
  }
  if (kind == "groups") {
    json groups = json::array();
    for (const std::vector<std::string>& group : name_groups(input["names"])) {
      groups.push_back(names_of(group));
    }
    return {{"groups", groups}};
  }
  if (kind == "plan") return run_plan(input);
  if (kind == "producer_pack") return run_producer_pack(input);
  throw std::invalid_argument(kind);
}

// An error is expected by a part of its text; everything else whole.
void expect_same(const json& actual, const json& expected, const std::string& where) {
  if (expected.is_object() && expected.contains("error")) {
    ASSERT_TRUE(actual.is_object() && actual.contains("error")) << where << ": " << actual.dump();
    const std::string text = actual["error"];
    EXPECT_NE(text.find(expected["error"].get<std::string>()), std::string::npos)
        << where << ": " << text;
    return;
  }
  if (expected.is_object()) {
    ASSERT_TRUE(actual.is_object()) << where;
    EXPECT_EQ(actual.size(), expected.size()) << where << ": " << actual.dump();
    for (const auto& [key, value] : expected.items()) {
      ASSERT_TRUE(actual.contains(key)) << where << ": no " << key << ": " << actual.dump();
      expect_same(actual[key], value, where + "." + key);
    }
    return;
  }
  if (expected.is_array()) {
    ASSERT_TRUE(actual.is_array()) << where;
    ASSERT_EQ(actual.size(), expected.size()) << where << ": " << actual.dump();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_same(actual[i], expected[i], where + "[" + std::to_string(i) + "]");
    }
    return;
  }
  EXPECT_EQ(actual, expected) << where;
}

class GoldenPlan : public ::testing::TestWithParam<Line> {};

TEST_P(GoldenPlan, equals_what_was_recorded) {
  const json& line = GetParam().text;
  json expected = line["expected"];
  const auto right = right_answers().find(line["id"].get<std::string>());
  if (right != right_answers().end()) {
    if (right->second.expected.contains("error")) {
      expected = right->second.expected;
    } else {
      expected.merge_patch(right->second.expected);
    }
  }
  expected.erase("error_type");
  const json actual = attempt([&] { return run(line); });
  expect_same(actual, expected, line["id"]);
}

std::string test_name(const ::testing::TestParamInfo<Line>& info) {
  std::string name = info.param.text["id"];
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(line, GoldenPlan, ::testing::ValuesIn(lines()), test_name);

TEST(GoldenPlanFile, has_every_line_that_was_recorded) {
  EXPECT_EQ(lines().size(), 153U);
  std::set<std::string> ids;
  for (const Line& line : lines()) ids.insert(line.text["id"].get<std::string>());
  for (const auto& [id, answer] : right_answers()) EXPECT_EQ(ids.count(id), 1U) << id;
}

}  // namespace
}  // namespace crossmesh::profiles
