// SPDX-License-Identifier: Apache-2.0
#include "cli/move.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "cli/colocated.h"
#include "cli/expert_slots.h"
#include "cli/layout_file.h"
#include "cli/model.h"
#include "cli/move_engine.h"
#include "cli/move_floor.h"
#include "cli/move_result.h"
#include "cli/move_trainer.h"
#include "cli/run_folder.h"
#include "crossmesh/catalog/write.h"
#include "crossmesh/layout/opaque.h"
#include "crossmesh/schedule/schedule.h"
#include "crossmesh/transport/inproc.h"

namespace crossmesh::cli {
namespace {

Layout engine_layout(const Model& model, const MoveOptions& options) {
  if (options.family == nullptr) return target_layout(model, options.request);
  Layout layout = lay_out(*options.family, model.config, parse_spec(options.request.engine),
                          EngineOptions{options.request.parameter_dtype});
  for (const std::string& pattern : options.request.opaque) mark_opaque(layout, pattern, pattern);
  return layout;
}

const Checkpoint& checkpoint_of(const Model& model) {
  if (model.checkpoint) return *model.checkpoint;
  throw Error(ErrorCode::invalid_argument, "move: a config.json alone has no weights")
      .with("model", model.path.string())
      .hint("give a checkpoint's folder; `crossmesh synth` makes one from a config");
}

// How long ranks wait for one that writes, checks or measures: such work takes its time, with the
// bytes of all ranks, since they may share a core. A stopped rank must be missed all the same.
std::chrono::milliseconds work_timeout(std::chrono::milliseconds timeout, std::int64_t model_bytes,
                                       int rank_count) {
  constexpr double kBytesPerMillisecond = 128e3;
  const double bytes = static_cast<double>(model_bytes) * rank_count;
  return timeout + std::chrono::milliseconds(
                       static_cast<std::int64_t>(std::min(bytes / kBytesPerMillisecond, 3.6e6)));
}

// The program of one rank, from join to leave.
class RankProgram {
 public:
  RankProgram(const RankOptions& options, std::unique_ptr<Transport> transport,
              const std::function<void(int)>& on_iteration)
      : options_(options),
        model_(open_model(options.move.request.model)),
        source_(source_layout(model_, options.move.request)),
        target_(engine_layout(model_, options.move)),
        fault_(options.move.faults.fault, options.rank),
        transport_(transport.get()),
        session_(session_options(), std::move(transport)),
        on_iteration_(on_iteration) {
    checkpoint_of(model_);
  }

  bool is_trainer() const { return options_.rank < source_.rank_count; }
  EngineState state() const { return session_.state(); }

  nlohmann::ordered_json run();

 private:
  SessionOptions session_options();
  void agree();
  bool is_last_update(Phase phase) const;
  void enter(Phase phase);
  void iterate(int version);
  void iterate_until_done(int version);
  void restart_if_due(int version) const;
  void check(int version);
  void dump();
  std::unique_ptr<Floor> make_floor();
  nlohmann::json ways() const;

  const RankOptions& options_;
  Model model_;
  Layout source_;
  Layout target_;
  PlantedFault fault_;
  bool paused_ = false;
  int version_ = 0;  // of the update under way
  // Their memory outlives the session, whose peers may read it until it has gone.
  std::optional<MoveTrainer> trainer_;
  std::optional<MoveEngine> engine_;
  Transport* transport_;  // the session owns it
  Session session_;
  std::function<void(int)> on_iteration_;
  std::unique_ptr<Floor> floor_;
  MoveResult result_;
};

SessionOptions RankProgram::session_options() {
  SessionOptions session;
  session.session = options_.session;
  session.source_count = source_.rank_count;
  session.target_count = target_.rank_count;
  session.rank = options_.rank;
  session.digest = options_.move.digest;
  session.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options_.move.timeout_seconds * 1000));
  session.ready_timeout = work_timeout(session.timeout, byte_count(model_.catalog),
                                       source_.rank_count + target_.rank_count);
  // Engines reserve and clear their memory while they agree.
  session.agree_timeout = session.ready_timeout;
  session.is_return = options_.move.faults.is_return;
  session.on_phase = [this](Phase phase) { enter(phase); };
  session.is_lost = [this](std::string_view message, int /*to*/) {
    const bool is_before = version_ == 0;
    return (is_before || version_ == options_.move.iterations) && fault_.loses(message);
  };
  return session;
}

// Whether the phase is one of the last update, or lies outside of updates.
bool RankProgram::is_last_update(Phase phase) const {
  const bool in_update = phase != Phase::join && phase != Phase::agree && phase != Phase::leave;
  return !in_update || version_ == options_.move.iterations;
}

void RankProgram::enter(Phase phase) {
  if (!is_last_update(phase)) return;
  if (options_.move.pause == phase && !std::exchange(paused_, true)) options_.on_pause();
  fault_.enter(phase);
}

void RankProgram::agree() {
  if (is_trainer()) {
    trainer_.emplace(model_, source_, options_.rank, options_.move.way);
    session_.agree(source_, options_.move.request.schedule, trainer_->memory());
    return;
  }
  const int engine_rank = options_.rank - source_.rank_count;
  engine_.emplace(model_, target_, engine_rank,
                  plain_engine(model_, options_.move.request, engine_rank));
  session_.agree(target_, options_.move.request.schedule, engine_->memory(),
                 [this](const TensorInfo& tensor, std::span<const std::byte> bytes) {
                   engine_->load(tensor, bytes);
                 });
}

void RankProgram::iterate(int version) {
  version_ = version;
  if (is_trainer()) {
    trainer_->write(static_cast<std::uint64_t>(version));
    session_.digest(version);
  }
  if (options_.move.check_replicas) session_.check_replicas();
  const UpdateReport report = is_trainer() ? session_.update(version) : session_.receive();
  // Nobody checks before the last rank knows that the update is over: it may wait for a processor.
  const std::vector<nlohmann::json> bytes =
      session_.exchange("bytes", {{"bytes", report.bytes},
                                  {"fallback", report.bytes_fallback},
                                  {"staging", report.staging_bytes_peak},
                                  {"digest_bytes", report.digest_bytes},
                                  {"digest_seconds", report.digest_seconds}});
  result_.add_update(report, bytes, source_.rank_count);
  check(version);
  if (floor_) result_.add_floor(floor_->measure(session_, version));
  if (on_iteration_) on_iteration_(version);
}

void RankProgram::iterate_until_done(int version) {
  for (int attempt = 1;; ++attempt) {
    try {
      return iterate(version);
    } catch (const Error&) {
      if (attempt == options_.move.faults.attempts || !session_.can_retry()) throw;
    }
  }
}

void RankProgram::restart_if_due(int version) const {
  const FaultOptions& faults = options_.move.faults;
  if (!faults.restart || faults.is_return || faults.restart->version != version) return;
  if (options_.rank == source_.rank_count + faults.restart->engine) options_.on_restart();
}

void RankProgram::check(int version) {
  nlohmann::json own;
  const auto begin = std::chrono::steady_clock::now();
  if (engine_) {
    const EngineCheck found = engine_->check(static_cast<std::uint64_t>(version));
    own = {{"elements", found.elements_checked},
           {"wrong", found.parameters_wrong},
           {"fault", found.first_fault}};
  }
  const auto checks = session_.exchange("checked", own);
  result_.add_checks(
      checks, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

// A folder without its run.json holds no run, so that one is written when all else is there.
void RankProgram::dump() {
  const MoveOptions& options = options_.move;
  if (options.dump.empty()) return;
  if (engine_) engine_->dump(rank_file(options.dump, options_.rank - source_.rank_count));
  session_.exchange("dumped", {});
  if (options_.rank != 0) return;
  Run run;
  run.model = std::filesystem::absolute(model_.path).string();
  run.config_text = model_.config_text;
  run.trainer = options.request.trainer;
  run.engine = options.request.engine;
  run.engine_ranks = target_.rank_count;
  run.parameter_dtype = options.request.parameter_dtype.value_or(model_.config.dtype);
  run.version = options.iterations;
  run.has_expert_slots = !options.request.expert_slots.empty();
  if (run.has_expert_slots) {
    const nlohmann::json table = read_expert_slots(options.request.expert_slots);
    write_text(expert_slots_file(options.dump, run), table.dump() + "\n");
  }
  write_run(options.dump, run);
}

std::unique_ptr<Floor> RankProgram::make_floor() {
  const int trainer_count = source_.rank_count;
  if (options_.move.floor == FloorKind::none) return nullptr;
  if (options_.move.floor == FloorKind::runs) {
    return std::make_unique<RunsFloor>(session_, options_.rank, trainer_count,
                                       trainer_ ? trainer_->memory() : engine_->memory());
  }
  const Totals sums = totals(session_.schedule());
  const std::int64_t needed =
      is_trainer() ? 0
                   : sums.ingress_bytes[static_cast<std::size_t>(options_.rank - trainer_count)];
  return std::make_unique<MemcpyFloor>(session_, options_.rank, trainer_count, needed);
}

// How this engine took from each of its trainers.
nlohmann::json RankProgram::ways() const {
  nlohmann::json ways = nlohmann::json::array();
  for (const int peer : transport_->peers()) {
    if (is_trainer()) break;
    const LinkFacts facts = transport_->facts(peer);
    ways.push_back({{"trainer", peer},
                    {"engine", options_.rank},
                    {"way", facts.way},
                    {"bytes", facts.bytes_pulled},
                    {"bytes_per_second", facts.bytes_per_second},
                    {"why_not_attach", facts.why_not_attach}});
  }
  return ways;
}

nlohmann::ordered_json RankProgram::run() {
  session_.join();
  agree();
  floor_ = make_floor();
  // A rank that was started again goes on behind what the others have.
  const int first = static_cast<int>(session_.version()) + 1;
  for (int version = first; version <= options_.move.iterations; ++version) {
    iterate_until_done(version);
    restart_if_due(version);
  }
  dump();
  nlohmann::json own;
  if (trainer_) own = {{"read", trainer_->bytes_read()}, {"held", trainer_->bytes_held()}};
  result_.add_sources(session_.exchange("sources", own));
  result_.add_ways(session_.exchange("ways", ways()));
  session_.leave();
  return result_.to_json(options_.move, session_.schedule());
}

// Threads share the descriptors of their process, and a library that lacks one may end it.
void check_descriptors(const RankCounts& counts) {
  constexpr std::int64_t kOfRank = 14;
  constexpr std::int64_t kOfPair = 2;
  const std::int64_t needed =
      kOfRank * (counts.trainers + counts.engines) + kOfPair * counts.trainers * counts.engines;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_cur >= static_cast<rlim_t>(needed)) return;
  throw Error(ErrorCode::limit_exceeded, "move: too few descriptors for this many ranks in threads")
      .with("trainer ranks", counts.trainers)
      .with("engine ranks", counts.engines)
      .with("descriptors", limit.rlim_cur)
      .with("descriptors needed", needed)
      .hint("raise `ulimit -n`, or use --transport shm");
}

}  // namespace

RankOutcome run_rank(const RankOptions& options,
                     const std::function<std::unique_ptr<Transport>()>& open_transport,
                     const std::function<void(int)>& on_iteration) {
  RankOutcome outcome;
  outcome.rank = options.rank;
  outcome.title = fmt::format("rank {}", options.rank);
  std::optional<RankProgram> program;
  try {
    program.emplace(options, open_transport(), on_iteration);
    outcome.result = program->run();
  } catch (const Error& error) {
    outcome.error = error;
  } catch (const std::bad_alloc&) {
    outcome.error =
        Error(ErrorCode::out_of_memory, "move: memory is exhausted").with("rank", options.rank);
  } catch (const std::exception& error) {
    outcome.error = Error(ErrorCode::internal, "move: an unexpected exception")
                        .with("rank", options.rank)
                        .with("what", error.what());
  }
  if (!program) return outcome;
  outcome.title = fmt::format("{} {}", program->is_trainer() ? "trainer" : "engine", options.rank);
  if (program->is_trainer()) {
    outcome.state = outcome.error ? "aborted" : "done";
  } else {
    outcome.state = to_string(program->state());
  }
  return outcome;
}

nlohmann::ordered_json to_json(const RankOutcome& outcome) {
  nlohmann::ordered_json json = {
      {"rank", outcome.rank}, {"title", outcome.title}, {"state", outcome.state}};
  if (outcome.error) {
    json["error"] = {{"code", static_cast<int>(outcome.error->code())},
                     {"text", outcome.error->text()}};
  }
  if (!outcome.result.is_null()) json["result"] = outcome.result;
  return json;
}

RankOutcome outcome_from_json(const nlohmann::ordered_json& json) {
  RankOutcome outcome;
  outcome.rank = json.at("rank");
  outcome.title = json.at("title");
  outcome.state = json.at("state");
  if (json.contains("error")) {
    outcome.error = Error::from_text(static_cast<ErrorCode>(json["error"].at("code").get<int>()),
                                     json["error"].at("text"));
  }
  if (json.contains("result")) outcome.result = json["result"];
  return outcome;
}

RankCounts check_move(const MoveOptions& options) {
  if (names_layout_file(options.request.engine)) {
    // What arrived is checked by a loader that knows engines by their mesh alone.
    throw Error(ErrorCode::unsupported, "move: an engine's layout from a file is only planned")
        .with("engine", options.request.engine)
        .hint("give the engine as a mesh (tp=2), or use `crossmesh plan`");
  }
  const Model model = open_model(options.request.model);
  checkpoint_of(model);
  if (!options.dump.empty()) check_free_for_run(options.dump);
  check_tied(model);
  const Schedule schedule =
      arrange(compile(source_layout(model, options.request), engine_layout(model, options)),
              options.request.schedule);
  return {schedule.plan.source.rank_count, schedule.plan.target.rank_count};
}

std::vector<RankOutcome> move_in_threads(const MoveOptions& options) {
  const RankCounts counts = check_move(options);
  check_descriptors(counts);
  std::vector<int> ranks(static_cast<std::size_t>(counts.trainers + counts.engines));
  std::iota(ranks.begin(), ranks.end(), 0);
  InprocHub hub;
  const std::string session = new_session_name();
  return run_ranks(ranks, {options, session, 0, {}, {}}, [&](int rank) {
    return make_inproc({&hub, session, rank});
  });
}

std::string new_session_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace crossmesh::cli
