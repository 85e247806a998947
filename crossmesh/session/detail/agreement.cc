// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/detail/agreement.h"

#include <algorithm>
#include <optional>
#include <set>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/wire.h"

namespace crossmesh {
namespace {

using nlohmann::json;

json options_json(const ScheduleOptions& options) {
  return {{"route", static_cast<int>(options.route)},
          {"staging_bytes_max", options.staging_bytes_max},
          {"fallback_bytes_max", options.fallback_bytes_max}};
}

Layout layout_of(const Message& message) {
  const auto layout = message.body.find("layout");
  if (layout == message.body.end()) {
    throw Error(ErrorCode::corrupt_file, "agree: a message without its layout")
        .with("rank", message.rank);
  }
  return layout_from_json(*layout);
}

Message fetch_layout(Desk& desk, int rank) {
  desk.send(rank, MessageKind::want);
  return desk.gather(MessageKind::layout, {rank}).at(rank);
}

// The coordinator's part: returns the target layout, after every rank of both sides agreed.
Layout gather_layouts(Desk& desk, const Layout& own, const ScheduleOptions& options,
                      int source_count) {
  const std::map<int, Message> offers = desk.gather(MessageKind::offer, desk.members());
  for (const auto& [rank, offer] : offers) check_offer(desk, options, offer);
  const std::string own_fingerprint = to_string(fingerprint(own));
  const int first_engine = source_count;
  const std::string engine_fingerprint = field<std::string>(offers.at(first_engine), "fingerprint");
  const Layout target = layout_of(fetch_layout(desk, first_engine));
  for (const auto& [rank, offer] : offers) {
    const bool source = desk.is_source(rank);
    const std::string& expected = source ? own_fingerprint : engine_fingerprint;
    if (field<std::string>(offer, "fingerprint") == expected) continue;
    throw layout_disagreement(desk, source ? own : target, source ? 0 : first_engine,
                              fetch_layout(desk, rank));
  }
  return target;
}

void check_counts(const Layout& source, const Layout& target, int source_count, int target_count) {
  const auto check = [](std::string_view side, int layout_ranks, int job_ranks) {
    if (layout_ranks == job_ranks) return;
    throw Error(ErrorCode::mismatch, "agree: the layout is for another number of ranks")
        .with("side", side)
        .with("layout ranks", layout_ranks)
        .with("job ranks", job_ranks);
  };
  check("trainer", source.rank_count, source_count);
  check("engine", target.rank_count, target_count);
}

json places_json(const SourcePlaces& places) {
  std::vector<std::int64_t> flat;
  flat.reserve(places.parameters.size() * 2);
  for (const RegionPlace& place : places.parameters) {
    flat.push_back(place.region);
    flat.push_back(place.offset_bytes);
  }
  return {{"parameters", flat},
          {"staging_region", places.staging_region},
          {"staging_offset_bytes", places.staging_offset_bytes},
          {"slot_bytes", places.slot_bytes},
          {"slot_count", places.slot_count}};
}

SourcePlaces places_of(const Message& message, std::size_t parameter_count) {
  const auto flat = field<std::vector<std::int64_t>>(message, "parameters");
  SourcePlaces places;
  if (flat.size() != parameter_count * 2) {
    throw Error(ErrorCode::mismatch, "agree: a rank published places for another layout")
        .with("rank", message.rank)
        .with("places", flat.size() / 2)
        .with("parameters", parameter_count);
  }
  for (std::size_t i = 0; i < flat.size(); i += 2) {
    places.parameters.push_back({static_cast<Region>(flat[i]), flat[i + 1]});
  }
  places.staging_region = static_cast<Region>(field<std::int64_t>(message, "staging_region"));
  places.staging_offset_bytes = field<std::int64_t>(message, "staging_offset_bytes");
  places.slot_bytes = field<std::int64_t>(message, "slot_bytes");
  places.slot_count = field<std::int64_t>(message, "slot_count");
  return places;
}

// What a source says to one engine, in the coordinator's relay: { "of": rank, "for": rank, ... }.
json relay(int source, int engine, const SourcePlaces& places) {
  json body = places_json(places);
  body["of"] = source;
  body["for"] = engine;
  return body;
}

}  // namespace

json layout_body(const Layout& layout) { return {{"layout", to_json(layout)}}; }

// The first tensor on which two layouts of one side differ.
Error layout_disagreement(const Desk& desk, const Layout& a, int rank_a, const Message& message) {
  const Layout b = layout_of(message);
  const int rank_b = message.rank;
  const auto error = [&](std::string_view key, std::string_view what, auto of_a, auto of_b) {
    return Error(ErrorCode::mismatch, "agree: ranks of one side have different layouts")
        .with(key, what)
        .with(desk.title(rank_a), of_a)
        .with(desk.title(rank_b), of_b)
        .hint("all ranks of a side must be started with the same model and the same spec");
  };
  if (a.rank_count != b.rank_count) {
    return error("differs in", "ranks of the side", a.rank_count, b.rank_count);
  }
  const std::vector<Fingerprint> of_a = fingerprints_by_tensor(a);
  const std::vector<Fingerprint> of_b = fingerprints_by_tensor(b);
  for (std::size_t t = 0; t < std::min(of_a.size(), of_b.size()); ++t) {
    if (a.tensors[t].name != b.tensors[t].name) {
      return error("differs in", "tensor names", a.tensors[t].name, b.tensors[t].name);
    }
    if (of_a[t] != of_b[t]) {
      return error("tensor", a.tensors[t].name, to_string(of_a[t]), to_string(of_b[t]));
    }
  }
  if (of_a.size() != of_b.size()) {
    return error("differs in", "tensor count", of_a.size(), of_b.size());
  }
  return error("differs in", "ranks, parameters or unused tensors", to_string(fingerprint(a)),
               to_string(fingerprint(b)));
}

void check_offer(const Desk& desk, const ScheduleOptions& own, const Message& offer) {
  const json& options = offer.body.at("options");
  const json own_options = options_json(own);
  for (const auto& [key, value] : own_options.items()) {
    if (options.value(key, json()) == value) continue;
    throw Error(ErrorCode::mismatch, "agree: ranks were started with different options")
        .with("option", key)
        .with(desk.title(0), value.dump())
        .with(desk.title(offer.rank), options.value(key, json()).dump());
  }
}

void check_schedule(const Desk& desk, const std::string& own_fingerprint, const Message& agreed) {
  const std::string theirs = field<std::string>(agreed, "schedule");
  if (theirs == own_fingerprint) return;
  throw Error(ErrorCode::mismatch, "agree: ranks compiled different schedules")
      .with(desk.title(0), own_fingerprint)
      .with(desk.title(agreed.rank), theirs)
      .hint("all ranks must run the same crossmesh");
}

void check_joiner(const Desk& desk, const SessionOptions& options, std::string_view transport,
                  const Message& message) {
  const auto check = [&](std::string_view what, const json& ours, const json& theirs) {
    if (ours == theirs) return;
    throw Error(ErrorCode::mismatch, "join: a rank was started for another job")
        .with("differs in", what)
        .with(desk.title(0), ours.dump())
        .with(desk.title(message.rank), theirs.dump());
  };
  check("trainer ranks", options.source_count, field<std::int64_t>(message, "source_count"));
  check("engine ranks", options.target_count, field<std::int64_t>(message, "target_count"));
  check("transport", std::string(transport), field<std::string>(message, "transport"));
  check("digest", std::string(name_of(options.digest)), field<std::string>(message, "digest"));
}

void check_memory(const Layout& layout, int side_rank, const ParameterMemory& memory) {
  if (memory.places.size() != layout.parameters.size()) {
    throw Error(ErrorCode::invalid_argument, "agree: memory is not that of the layout")
        .with("rank of the side", side_rank)
        .with("places", memory.places.size())
        .with("parameters", layout.parameters.size());
  }
  for (int p = 0; p < static_cast<int>(layout.parameters.size()); ++p) {
    if (!has_parameter(layout, side_rank, p)) continue;
    const Parameter& parameter = layout.parameters[static_cast<std::size_t>(p)];
    const DType dtype =
        layout.parameter_classes[static_cast<std::size_t>(parameter.parameter_class)].dtype;
    const std::int64_t bytes =
        bytes_of(dtype, storage_elements(local_shape(layout, side_rank, p),
                                         local_strides(layout, side_rank, p)))
            .value_or(-1);
    const ParameterPlace& place = memory.places[static_cast<std::size_t>(p)];
    const bool known =
        place.buffer >= 0 && static_cast<std::size_t>(place.buffer) < memory.buffers.size();
    const std::int64_t room =
        known ? memory.buffers[static_cast<std::size_t>(place.buffer)].size_bytes : 0;
    if (bytes >= 0 && place.offset_bytes >= 0 && (known || bytes == 0) &&
        bytes <= room - place.offset_bytes) {
      continue;
    }
    throw Error(ErrorCode::invalid_argument, "agree: a parameter does not fit its memory")
        .with("parameter", parameter.name)
        .with("rank of the side", side_rank)
        .with("shape", to_string(local_shape(layout, side_rank, p)))
        .with("bytes", bytes)
        .with("buffer", place.buffer)
        .with("offset", place.offset_bytes)
        .with("buffer bytes", room);
  }
}

Layout exchange_layouts(Desk& desk, const Layout& own, const ScheduleOptions& options) {
  const int source_count = desk.source_count();
  if (desk.is_coordinator()) {
    Layout target = gather_layouts(desk, own, options, source_count);
    check_counts(own, target, source_count, desk.rank_count() - source_count);
    const json for_engines = layout_body(own);
    const json for_trainers = layout_body(target);
    for (const int rank : desk.members()) {
      desk.send(rank, MessageKind::layouts, desk.is_source(rank) ? for_trainers : for_engines);
    }
    return target;
  }
  desk.send(0, MessageKind::offer,
            {{"fingerprint", to_string(fingerprint(own))}, {"options", options_json(options)}});
  Desk::Wait wait;
  wait.work = [&] {
    if (!desk.has(MessageKind::want, 0)) return false;
    desk.take(MessageKind::want, 0);
    desk.send(0, MessageKind::layout, layout_body(own));
    return true;
  };
  wait.limit = desk.return_limit();
  wait.done = [&] { return desk.has(MessageKind::layouts, 0); };
  wait.describe = [&] { return fmt::format("layouts from {}", desk.title(0)); };
  desk.serve(wait);
  return layout_of(desk.take(MessageKind::layouts, 0));
}

PublishedPlaces exchange_places(Desk& desk, const Schedule& schedule,
                                const std::function<SourcePlaces(int)>& own_places) {
  const std::string own = to_string(fingerprint(schedule));
  const int source_count = desk.source_count();
  const int target_count = desk.rank_count() - source_count;
  const std::size_t parameter_count = schedule.plan.source.parameters.size();
  const int rank = desk.rank();
  if (!desk.is_coordinator()) {
    json body = {{"schedule", own}};
    json& relays = body["relays"] = json::array();
    for (int t = 0; desk.is_source(rank) && t < target_count; ++t) {
      relays.push_back(relay(rank, source_count + t, own_places(t)));
    }
    desk.send(0, MessageKind::agreed, std::move(body));
    PublishedPlaces places;
    const Message message = desk.expect(MessageKind::places, desk.return_limit());
    for (const json& item : message.body.at("relays")) {
      Message one{MessageKind::places, item.at("of").get<int>(), item};
      places.sources.emplace(one.rank, places_of(one, parameter_count));
    }
    return places;
  }
  const std::map<int, Message> agreed = desk.gather(MessageKind::agreed, desk.members());
  for (const auto& [member, message] : agreed) check_schedule(desk, own, message);
  PublishedPlaces places;
  std::map<int, json>& relays_of_rank = places.relays_of_rank;
  for (int t = 0; t < target_count; ++t) {
    relays_of_rank[source_count + t].push_back(relay(0, source_count + t, own_places(t)));
  }
  for (const auto& [from, message] : agreed) {
    for (const json& item : message.body.at("relays")) {
      relays_of_rank[item.at("for").get<int>()].push_back(item);
    }
  }
  for (const int member : desk.members()) {
    const json relays = relays_of_rank.contains(member) ? relays_of_rank[member] : json::array();
    desk.send(member, MessageKind::places, {{"relays", relays}});
  }
  return places;
}

void check_versions(const Desk& desk, const std::map<int, Message>& ready, std::int64_t version) {
  for (const auto& [rank, message] : ready) {
    if (!desk.is_source(rank)) continue;
    const std::int64_t theirs = field<std::int64_t>(message, "version");
    if (theirs == version) continue;
    throw Error(ErrorCode::mismatch, "update: trainers are at different versions")
        .with(desk.title(0), version)
        .with(desk.title(rank), theirs);
  }
}

std::map<int, std::vector<int>> ranks_of_replicas(const Schedule& schedule, int source_count) {
  std::map<int, std::vector<int>> ranks;
  const std::vector<int>& replica_of_rank = schedule.plan.target.replica_of_rank;
  for (std::size_t t = 0; t < replica_of_rank.size(); ++t) {
    ranks[replica_of_rank[t]].push_back(source_count + static_cast<int>(t));
  }
  return ranks;
}

std::int64_t fallback_bytes(const Schedule& schedule, int target_rank) {
  const Plan& plan = schedule.plan;
  std::int64_t bytes = 0;
  for (const PlanInstance& instance : plan.instances) {
    if (!instance.opaque) continue;
    const Instance& target =
        plan.target.instances[static_cast<std::size_t>(instance.target_instance)];
    const Binding& binding = plan.target.bindings[static_cast<std::size_t>(target.binding)];
    if (binding.role_of_rank[static_cast<std::size_t>(target_rank)] < 0) continue;
    const Instance& source =
        plan.source.instances[static_cast<std::size_t>(instance.source_instance)];
    bytes =
        std::max(bytes, byte_count(plan.source.tensors[static_cast<std::size_t>(source.tensor)]));
  }
  return bytes;
}

std::string describe_update(const Desk& desk, const std::map<int, std::vector<int>>& waiting,
                            const std::string& acknowledgements) {
  std::vector<std::string> parts;
  for (const auto& [replica, ranks] : waiting) {
    for (const int rank : ranks) {
      if (!desk.has(MessageKind::whole, rank)) {
        parts.push_back(fmt::format("{} of replica {} to be whole", desk.title(rank), replica));
      }
    }
  }
  if (!acknowledgements.empty()) parts.push_back(acknowledgements);
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace crossmesh
