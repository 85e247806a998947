// SPDX-License-Identifier: Apache-2.0
// Every line of golden_resolution.jsonl but the resolutions themselves
// (target/golden_resolve_test): what the old transport's functions really did. Where that is wrong,
// `right_answers` says what is right, and why.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/groups.h"
#include "crossmesh/profiles/m2n_init.h"
#include "crossmesh/profiles/m2n_layout.h"
#include "crossmesh/profiles/m2n_plan.h"
#include "crossmesh/profiles/m2n_rounds.h"
#include "crossmesh/profiles/m2n_source.h"
#include "crossmesh/target/golden.h"

namespace crossmesh::profiles {
namespace {

using crossmesh::testing::json;
using crossmesh::testing::Line;
using Sizes = std::vector<std::int64_t>;

struct RightAnswer {
  std::string why;
  json expected;
};

json error_of(const std::string& part) { return {{"error", {{"contains", {part}}}}}; }

const std::map<std::string, RightAnswer>& right_answers() {
  static const std::map<std::string, RightAnswer> answers = {
      {"receive.loader_stops_early",
       {"a reshard that is never issued hangs its partner, so it is an error",
        error_of("the loader stopped before it took all tensors")}},
      {"receive.not_initialised",
       {"steps are a function of the plan: there is no state without one",
        {{"events", {{{"event", "mtp_check_off"}}}}, {"live_values", json::object()}}}},
      {"trainer_send.too_few",
       {"a reshard that is never issued hangs its partner, so it is an error",
        error_of("yielded fewer tensors")}},
      {"trainer_send.order_and_update_fail",
       {"on the error path no control call is waited for, and the first error stands",
        error_of("iterate in a stable order")}},
      {"trainer_source.negative_shard_2d",
       {"a negative dim counts from the end, and is not a replica",
        {{"mesh", {{"dims", {2, 4}}, {"start_rank", 0}}},
         {"metadata",
          {{{"name", "w"}, {"dtype", "float32"}, {"shape", {8, 8}}, {"placements", {0, 1}}}}}}}},
  };
  return answers;
}

// What only Python can get wrong: an argument's type is checked by the compiler here.
const std::set<std::string> kOfTypes = {"trainer_init.plain_module_source",
                                        "trainer_init.no_source", "trainer_send.not_initialised"};

// Facts about how Python prints or ships a value, which have no counterpart.
const std::set<std::string> kNotOurs = {"uid_in_repr",    "wire_dtype", "wire_shape",
                                        "broadcast_from", "backend",    "before_communicator"};

Placements placements_from(const json& row) {
  if (row.is_null()) return std::nullopt;
  return row.get<std::vector<int>>();
}
json placements_json(const Placements& placements) {
  return placements ? json(*placements) : json();
}
json mesh_json(const WireMesh& mesh) {
  return {{"dims", mesh.dims}, {"start_rank", mesh.start_rank}};
}
WireMesh mesh_from(const json& mesh) { return wire_mesh(mesh["dims"], mesh["start_rank"]); }

json run_layout(const std::string& what, const json& input) {
  if (what == "mesh") {
    return {{"size", wire_mesh(input["dims"], input["start_rank"]).size()}};
  }
  if (what == "check_placements") {
    check_placements(input["placements"], input["context"].get<std::string>());
    return {{"ok", true}};
  }
  if (what == "check_transferable") {
    transferable_dtype(input["name"].get<std::string>(), input["dtype"].get<std::string>(),
                       input["shape"]);
    return {{"ok", true}};
  }
  if (what == "check_plan_limits") {
    const auto layout = [](const json& side) {
      return wire_layout(mesh_from(side["mesh"]), placements_from(side["placements"]), "p");
    };
    check_plan_limits({layout(input["source"]), layout(input["destination"])},
                      input["name"].get<std::string>());
    return {{"ok", true}};
  }
  const WireLayout layout =
      wire_layout(mesh_from(input["mesh"]), placements_from(input["placements"]), "placements");
  if (what == "validate_layout") {
    check_layout(layout, input["shape"], input["side"].get<std::string>());
    return {{"ok", true}};
  }
  return {{"mesh", mesh_json(layout.mesh)},
          {"placements", layout.placements},
          {"shard_count", shard_count(layout)}};
}

json run_groups(const std::string& what, const json& input) {
  const std::vector<std::string> names = input["names"];
  if (what == "layerwise_groups") return {{"groups", name_groups(names)}};
  const auto held = crossmesh::testing::optional_at<std::vector<std::string>>(input, "held");
  if (what == "source_groups") return {{"groups", held_groups(names, held)}};
  json result = json::array();
  for (const Batch& batch : batches(names, held, input["yielded"])) {
    result.push_back({{"names", batch.names}, {"present", batch.present}});
  }
  return {{"batches", result}};
}

json unique_id_json(const Rendezvous& rendezvous) {
  return rendezvous.unique_id.empty() ? json() : json(rendezvous.unique_id.size());
}

json run_init(const std::string& what, const json& input) {
  if (what == "worker_init_info") {
    return {{"accepted", true},
            {"unique_id_bytes", unique_id_json(worker_init(input.dump()).rendezvous)}};
  }
  if (what == "worker_update_info") {
    return {{"accepted", true}, {"names", worker_update(input.dump())}};
  }
  const TrainerInit init = trainer_init(input.dump());
  return {{"accepted", true},
          {"destination_mesh_dims", init.destination_mesh_dims},
          {"is_sender", init.is_sender()},
          {"unique_id_bytes", unique_id_json(init.rendezvous)}};
}

std::vector<Placements> all_placements(const json& rows) {
  std::vector<Placements> result;
  for (const json& row : rows) result.push_back(placements_from(row));
  return result;
}
json all_json(const std::vector<Placements>& all) {
  json result = json::array();
  for (const Placements& placements : all) result.push_back(placements_json(placements));
  return result;
}

json run_publish(const json& input) {
  const std::size_t count = input["parameter_count"];
  std::vector<Row> rows(count, Row{kReplicatedRow, kReplicatedRow});
  if (input["rank"] == input["publishing_rank"]) {
    std::optional<std::vector<Placements>> own;
    if (!input["own"].is_null()) own = all_placements(input["own"]);
    rows = rows_of(own, count);
  }
  const std::vector<Row> received =
      input["received_rows"].is_null() ? rows : input["received_rows"].get<std::vector<Row>>();
  return {{"wire_before_broadcast", rows}, {"decoded", all_json(placements_of(received))}};
}

json run_worker_plan(const json& input) {
  const ResolveRequest model = crossmesh::testing::resolve_request(input);
  const WorkerPlan plan =
      plan_worker(worker_init(input["init_info"].dump()),
                  {model.parameters, model.modules, model.distrusted_types,
                   crossmesh::testing::optional_at<std::string>(input, "quantization"),
                   input["pipeline_parallel_size"], Closure::names});
  if (input.contains("received_rows")) {
    check_same_rows(input["init_info"]["names"], plan.placements,
                    placements_of(input["received_rows"].get<std::vector<Row>>()));
  }
  return {{"destinations", crossmesh::testing::destinations_json(plan.resolution)},
          {"uses_load_weights", plan.uses_fallback}};
}

json layout_list(const WireMesh& mesh) { return {mesh.dims[0], mesh.dims[1], mesh.start_rank}; }

json run_receive(const json& input) {
  std::vector<PlannedName> plan;
  json live = json::object();
  for (const json& row : input["plan"]) {
    plan.push_back({row["name"], row["direct"]});
    live[plan.back().name] = 0.0;
  }
  const std::vector<ReceiveStep> steps = receive_steps(plan, input["requested"]);
  if (input.contains("load_weights_stops_after")) {
    check_all_loaded(plan, steps, input["load_weights_stops_after"]);
  }
  const WireLayout source = wire_layout({{1, 1}, 0}, {}, "");
  const WireLayout target = wire_layout({{2, 1}, 1}, {}, "");
  json events = {{{"event", "mtp_check_off"}}};
  for (const ReceiveStep& step : steps) {
    using Kind = ReceiveStep::Kind;
    if (step.kind == Kind::begin_loading || step.kind == Kind::end_loading) {
      const bool is_begin = step.kind == Kind::begin_loading;
      events.push_back({{"event", is_begin ? "load_weights_begin" : "load_weights_end"}});
      continue;
    }
    const json& row = input["plan"][static_cast<std::size_t>(step.parameter)];
    const std::string name = row["name"];
    const json& value = input["incoming_value"][name];
    if (step.kind == Kind::load) {
      events.push_back({{"event", "stream_sync"}});
      events.push_back(
          {{"event", "load"}, {"name", name}, {"value", value}, {"shape", row["shape"]}});
      continue;
    }
    const bool is_live = step.kind == Kind::reshard_into_live;
    if (is_live) live[name] = value;
    events.push_back({{"event", "reshard"},
                      {"name", name},
                      {"into_live", is_live},
                      {"source_is_null", true},
                      {"source_mesh", layout_list(source.mesh)},
                      {"source_placements", source.placements},
                      {"destination_mesh", layout_list(target.mesh)},
                      {"destination_placements", target.placements}});
  }
  return {{"events", events}, {"live_values", live}};
}

json run_trainer_init(const json& input) {
  const int trainers = input["num_trainer_ranks"];
  TrainerFacts facts{trainers, input["source_mesh"], {input["workers"], 1}, {}};
  if (!input["dst_mesh_dims"].is_null()) {
    facts.destination_mesh_dims = input["dst_mesh_dims"].get<Sizes>();
  }
  for (const json& row : input["parameters"]) {
    facts.parameters.push_back(
        {row["name"], row["dtype"], row["shape"], placements_from(row["placements"])});
  }
  const std::vector<Row> rows = input["received_rows"];
  plan_trainer(facts, rows);
  return {{"accepted", true}, {"destination_placements", all_json(placements_of(rows))}};
}

// The calls of a trainer rank around its pass, with one that fails.
json run_send(const json& input) {
  const std::vector<Reshard> reshards = plan_trainer(
      {2,
       {2, 1},
       {2, 2},
       {{"a", "float32", {4, 8}, std::vector<int>{0, -1}}, {"b", "float32", {8}, std::nullopt}}},
      {{-1, 0}, {kReplicatedRow, kReplicatedRow}});
  const bool is_sender = input["rank"] == 0;
  json result = {{"reshards", json::array()},
                 {"stream_syncs_after_reshards", json::array()},
                 {"control_calls", json::array()},
                 {"update_names", is_sender ? input["metadata"] : json()}};
  const auto call = [&](const char* name) {
    if (is_sender) result["control_calls"].push_back(name);
  };
  const auto fail_if = [&](const char* name) {
    if (is_sender && input["failing_call"] == name) {
      throw Error(ErrorCode::aborted, std::string("boom ") + name);
    }
  };
  call("start");
  fail_if("start");
  call("update");
  SendRound round(input["metadata"]);
  for (const std::string name : input["yielded"]) {
    const Reshard& reshard = reshards.at(static_cast<std::size_t>(round.take(name)));
    result["reshards"].push_back({{"event", "reshard"},
                                  {"position", result["reshards"].size()},
                                  {"destination_is_null", true},
                                  {"contiguous", true},
                                  {"source_mesh", layout_list(reshard.source.mesh)},
                                  {"source_placements", reshard.source.placements},
                                  {"destination_mesh", layout_list(reshard.destination.mesh)},
                                  {"destination_placements", reshard.destination.placements}});
  }
  round.finish();
  result["stream_syncs_after_reshards"].push_back(result["reshards"].size());
  fail_if("update");
  call("finish");
  fail_if("finish");
  return result;
}

DeviceMesh device_mesh(const json& nested) {
  DeviceMesh mesh;
  for (const json* level = &nested; level->is_array(); level = &(*level)[0]) {
    mesh.dims.push_back(static_cast<std::int64_t>(level->size()));
  }
  for (const json& rank : nested.flatten()) mesh.ranks.push_back(rank);
  return mesh;
}

json run_source(const json& input) {
  std::vector<TrainerTensor> tensors;
  json metadata = json::array();
  for (const json& row : input["parameters"]) {
    TrainerTensor tensor{row["name"], row["shape"], {}, {}};
    if (!row["device_mesh"].is_null()) {
      tensor.mesh = device_mesh(row["device_mesh"]);
      for (const json& placement : row["placements"]) {
        tensor.placements.push_back(
            placement.is_object() ? AxisPlacement{"Shard", placement["shard"].get<std::int64_t>()}
                                  : AxisPlacement{placement, {}});
      }
    }
    metadata.push_back({{"name", tensor.name},
                        {"dtype", row["dtype"]},
                        {"shape", tensor.shape},
                        {"placements", placements_json(placements_of(tensor))}});
    tensors.push_back(tensor);
  }
  const WireMesh mesh = mesh_of(tensors, input["num_trainer_ranks"]);
  return {{"mesh", mesh_json(mesh)}, {"metadata", metadata}};
}

json run(const json& line) {
  const std::string what = line["what"];
  const json& input = line["input"];
  if (what.ends_with("groups")) return run_groups(what, input);
  if (what == "publish_destinations") return run_publish(input);
  if (what == "worker_plan") return run_worker_plan(input);
  if (what == "worker_rank") {
    return {{"rank", worker_rank({input["data_parallel_index"], input["world_size"], input["rank"],
                                  input["rank_offset"]})}};
  }
  if (what == "worker_receive") return run_receive(input);
  if (what == "trainer_init") return run_trainer_init(input);
  if (what == "trainer_send") return run_send(input);
  if (what == "trainer_source") return run_source(input);
  if (what.ends_with("_info")) return run_init(what, input);
  return run_layout(what, input);
}

const std::vector<std::string> kKinds = {
    "mesh",           "check_placements",  "resolve_layout",     "validate_layout",
    "trainer_send",   "check_plan_limits", "check_transferable", "layerwise_groups",
    "source_groups",  "iter_groups",       "worker_init_info",   "worker_update_info",
    "trainer_source", "trainer_init_info", "worker_plan",        "publish_destinations",
    "worker_rank",    "worker_receive",    "trainer_init"};

json attempt(const json& line) {
  try {
    return run(line);
  } catch (const Error& error) {
    return {{"error", error.text()}};
  }
}

class GoldenResolution : public ::testing::TestWithParam<Line> {};

TEST_P(GoldenResolution, equals_what_was_recorded) {
  const json& line = GetParam().text;
  const std::string id = line["id"];
  if (kOfTypes.count(id) > 0) SUCCEED() << "the compiler checks it";
  if (kOfTypes.count(id) > 0) return;
  const auto right = right_answers().find(id);
  const json& expected = right == right_answers().end() ? line["expected"] : right->second.expected;
  const json actual = attempt(line);
  if (expected.contains("error")) {
    ASSERT_TRUE(actual.contains("error")) << actual.dump();
    const std::string text = actual["error"];
    for (const std::string part : expected["error"]["contains"]) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\nin " << text;
    }
    return;
  }
  for (const auto& [key, value] : expected.items()) {
    if (kNotOurs.count(key) > 0) continue;
    EXPECT_EQ(actual.value(key, json("none")), value) << key;
  }
  for (const auto& [key, value] : actual.items()) {
    EXPECT_TRUE(expected.contains(key)) << key << " " << value.dump();
  }
}

INSTANTIATE_TEST_SUITE_P(line, GoldenResolution,
                         ::testing::ValuesIn(crossmesh::testing::resolution_lines(kKinds)),
                         crossmesh::testing::line_name);

TEST(GoldenResolutionFile, has_every_line_that_was_recorded) {
  std::vector<std::string> all = kKinds;
  all.push_back("resolve_destinations");
  const std::vector<Line> lines = crossmesh::testing::resolution_lines(all);
  EXPECT_EQ(lines.size(), 592U);
  std::set<std::string> ids;
  for (const Line& line : lines) ids.insert(line.text["id"].get<std::string>());
  for (const auto& [id, answer] : right_answers()) EXPECT_EQ(ids.count(id), 1U) << id;
}

// Every error of those lines, whole.
TEST(GoldenResolutionFile, errors_read_well) {
  std::map<std::string, std::string> id_by_text;
  for (const Line& line : crossmesh::testing::resolution_lines(kKinds)) {
    const std::string id = line.text["id"];
    if (kOfTypes.count(id) > 0) continue;
    const json actual = attempt(line.text);
    if (actual.contains("error")) id_by_text.emplace(actual["error"].get<std::string>(), id);
  }
  std::map<std::string, std::string> text_by_id;
  for (const auto& [text, id] : id_by_text) text_by_id[id] = text;
  std::string all;
  for (const auto& [id, text] : text_by_id) all += "== " + id + "\n" + text + "\n";
  expect_golden("m2n_errors.txt", all);
}

}  // namespace
}  // namespace crossmesh::profiles
