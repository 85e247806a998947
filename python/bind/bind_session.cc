// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/chrono.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "crossmesh/session/session.h"
#include "python/bind/bind.h"
#include "python/bind/parameter_memory.h"
#include "python/bind/python_session.h"
#include "python/bind/schedule_words.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

template <>
struct Words<DigestMode> {
  static constexpr auto kLiteral = nb::detail::const_name("typing.Literal['off', 'sampled', 'on']");
  static constexpr std::string_view kWhat = "digest";
  static constexpr std::pair<std::string_view, DigestMode> kWords[] = {
      {"off", DigestMode::off}, {"sampled", DigestMode::sampled}, {"on", DigestMode::on}};
};

template <>
struct Words<EngineState::Kind> {
  static constexpr auto kLiteral = nb::detail::const_name("typing.Literal['whole', 'torn']");
  static constexpr std::string_view kWhat = "state";
  static constexpr std::pair<std::string_view, EngineState::Kind> kWords[] = {
      {"whole", EngineState::Kind::whole}, {"torn", EngineState::Kind::torn}};
};

namespace {

using Stage = PythonSession::Stage;
using Seconds = std::variant<std::chrono::microseconds, double>;

// Years are as good as for ever, and still fit.
constexpr double kSecondsMax = 1e9;

double seconds_of(std::chrono::milliseconds limit) {
  return std::chrono::duration<double>(limit).count();
}

std::chrono::milliseconds limit_of(std::string_view name, const Seconds& given) {
  const auto* duration = std::get_if<std::chrono::microseconds>(&given);
  const double seconds =
      duration ? std::chrono::duration<double>(*duration).count() : std::get<double>(given);
  if (seconds >= 0 && seconds <= kSecondsMax) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  }
  throw Error(ErrorCode::invalid_argument, "session: a time limit is out of range")
      .with("limit", name)
      .with("seconds", seconds)
      .with("largest", kSecondsMax);
}

int traverse(PyObject* self, visitproc visit, void* argument) {
  if (const int result = visit(reinterpret_cast<PyObject*>(Py_TYPE(self)), argument)) return result;
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<PythonSession>(self)->traverse(visit, argument);
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PythonSession>(self)->drop_callbacks();
  return 0;
}

PyType_Slot session_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {0, nullptr},
};

nb::object python_of(const nlohmann::json& value) {
  return nb::module_::import_("json").attr("loads")(value.dump());
}

nlohmann::json json_of(const nb::object& value) {
  const nb::object text = nb::module_::import_("json").attr("dumps")(value, "allow_nan"_a = false);
  return nlohmann::json::parse(nb::cast<std::string>(text));
}

void agree(nb::handle_t<PythonSession> self, nb::handle_t<PythonMemory> memory,
           const Word<Route>& route, std::int64_t staging_bytes_max,
           std::int64_t fallback_bytes_max, nb::object loader) {
  PythonSession& session = nb::cast<PythonSession&>(self);
  const PythonMemory& parameters = nb::cast<const PythonMemory&>(memory);
  const ScheduleOptions options{route.get(), staging_bytes_max, fallback_bytes_max};
  if (parameters.rank != session.side_rank()) {
    throw Error(ErrorCode::invalid_argument, "agree: the memory is another rank's")
        .with("rank", session.options().rank)
        .with("rank of the side", session.side_rank())
        .with("rank of the memory", parameters.rank);
  }
  if (!session.is_source()) parameters.check_taking();
  FallbackLoader fallback;
  session.run("agree", Stage::joined, [&](Session& s) {
    {
      nb::gil_scoped_acquire acquire;
      fallback = session.hold(nb::borrow(memory), std::move(loader), self);
    }
    s.agree(parameters.layout, options, parameters.memory, std::move(fallback));
  });
  session.reach(Stage::agreed);
}

void leave(PythonSession& session) {
  session.run("leave", Stage::joined, [](Session& s) { s.leave(); });
  session.reach(Stage::left);
}

void bind_reports(nb::module_& m) {
  nb::class_<EngineState> state(m, "EngineState", "What an engine rank serves.");
  state
      .def_prop_ro(
          "kind", [](const EngineState& s) { return word_of(s.kind); },
          "`whole`: every parameter at `version`; `torn`: the next full update mends it.")
      .def_ro("version", &EngineState::version, "0: what it held before the first update.");
  show(state, [](const EngineState& s) {
    return Facts{fact("kind", word_of(s.kind)), fact("version", s.version)};
  });

  nb::class_<UpdateReport> report(m, "UpdateReport", "What one rank moved in one update.");
  report.def_ro("version", &UpdateReport::version)
      .def_ro("attempt", &UpdateReport::attempt, "Counts all tries of the session.")
      .def_ro("epoch", &UpdateReport::epoch, "Counts who was lost and who came back.")
      .def_ro("seconds", &UpdateReport::seconds, "On trainers: from the start to the last commit.")
      .def_ro("bytes", &UpdateReport::bytes, "Source bytes that left or reached this rank.")
      .def_ro("bytes_fallback", &UpdateReport::bytes_fallback)
      .def_ro("staging_bytes_peak", &UpdateReport::staging_bytes_peak)
      .def_ro("digest_seconds", &UpdateReport::digest_seconds)
      .def_ro("digest_bytes", &UpdateReport::digest_bytes, "Of the targets' dtypes.")
      .def(
          "as_dict",
          [](const UpdateReport& r) {
            nb::dict values;
            values["version"] = r.version;
            values["attempt"] = r.attempt;
            values["epoch"] = r.epoch;
            values["seconds"] = r.seconds;
            values["bytes"] = r.bytes;
            values["bytes_fallback"] = r.bytes_fallback;
            values["staging_bytes_peak"] = r.staging_bytes_peak;
            values["digest_seconds"] = r.digest_seconds;
            values["digest_bytes"] = r.digest_bytes;
            return values;
          },
          nb::sig("def as_dict(self) -> dict[str, int | float]"), "Returns the fields by name.");
  show(report, [](const UpdateReport& r) {
    return Facts{fact("version", r.version), fact("bytes", r.bytes),
                 fact("bytes_fallback", r.bytes_fallback),
                 fact("seconds", fmt::format("{:.6f}", r.seconds))};
  });
}

void bind_init(nb::class_<PythonSession>& session) {
  const SessionOptions usual;
  session.def(
      "__init__",
      [](PythonSession* self, std::string name, int source_count, int target_count, int rank,
         PythonTransport& transport, Seconds timeout, Seconds agree_timeout, Seconds ready_timeout,
         const Word<DigestMode>& digest, bool is_return, nb::object on_phase) {
        SessionOptions options;
        options.session = std::move(name);
        options.source_count = source_count;
        options.target_count = target_count;
        options.rank = rank;
        options.timeout = limit_of("timeout", timeout);
        options.agree_timeout = limit_of("agree_timeout", agree_timeout);
        options.ready_timeout = limit_of("ready_timeout", ready_timeout);
        options.digest = digest.get();
        options.is_return = is_return;
        new (self) PythonSession(std::move(options), transport, std::move(on_phase));
      },
      nb::kw_only(), "session"_a, "source_count"_a, "target_count"_a, "rank"_a, "transport"_a,
      "timeout"_a = seconds_of(usual.timeout), "agree_timeout"_a = seconds_of(usual.agree_timeout),
      "ready_timeout"_a = seconds_of(usual.ready_timeout), "digest"_a = "sampled",
      "is_return"_a = false, "on_phase"_a = nb::none(),
      nb::sig("def __init__(self, *, session: str, source_count: int, target_count: int, "
              "rank: int, transport: Transport, timeout: datetime.timedelta | float = 10.0, "
              "agree_timeout: datetime.timedelta | float = 60.0, "
              "ready_timeout: datetime.timedelta | float = 600.0, "
              "digest: typing.Literal['off', 'sampled', 'on'] = 'sampled', "
              "is_return: bool = False, "
              "on_phase: typing.Callable[[str], object] | None = None) -> None"),
      R"(Args:
    session: 32 lower-case hexadecimal digits: the job's own name, such as
        `secrets.token_hex(16)` that a launcher gives to every rank.
    source_count: Trainer ranks, 0 to source_count - 1.
    target_count: Engine ranks, which follow.
    rank: This one, among all.
    transport: From `make_shm` or `make_inproc`; the session takes it.
    timeout: Seconds without any progress, in every wait.
    agree_timeout: Seconds, while ranks reserve their memory, if longer.
    ready_timeout: Seconds for work outside, such as a training step.
    digest: Which tensors an update checks: `"off"`, `"sampled"` or `"on"`; the same on every rank.
    is_return: Of an engine rank's process that was started again.
    on_phase: Called with the name of each phase that this rank enters.

Raises:
    crossmesh.Error: invalid_argument: ranks and counts do not fit, or the transport was taken.
)");
}

void bind_set_up(nb::class_<PythonSession>& type) {
  type.def(
          "join",
          [](PythonSession& session) {
            session.run("join", Stage::made, [](Session& s) { s.join(); });
            session.reach(Stage::joined);
          },
          R"(Blocks until all ranks are there. Every rank calls it.

Raises:
    crossmesh.Error: timed_out, naming the ranks that did not come; invalid_argument: another
        process is this rank.
)")
      .def("agree", &agree, "memory"_a, nb::kw_only(), "route"_a = "direct",
           "staging_bytes_max"_a = ScheduleOptions().staging_bytes_max,
           "fallback_bytes_max"_a = ScheduleOptions().fallback_bytes_max, "loader"_a = nb::none(),
           nb::sig("def agree(self, memory: ParameterMemory, *, "
                   "route: typing.Literal['direct', 'packed'] = 'direct', "
                   "staging_bytes_max: int = 67108864, fallback_bytes_max: int = 4294967296, "
                   "loader: typing.Callable[[TensorInfo, memoryview], object] | None = None) "
                   "-> None"),
           R"(Plans, proves, and compares fingerprints with every rank. Every rank calls it.

Args:
    memory: Of this rank, with its side's whole layout. It is kept until the session ends, and must
        stay where it is.
    route: As for `arrange`; the same on every rank, as the two bounds.
    staging_bytes_max: Bytes, per trainer rank.
    fallback_bytes_max: Bytes, per engine rank.
    loader: On engines, for opaque tensors: called with the tensor and its whole bytes, row-major,
        which are gone when it returns.

Raises:
    crossmesh.Error: mismatch, naming the tensor, the ranks and both values; what `compile` and
        `arrange` raise. Nothing has moved then.
)")
      .def(
          "check_replicas",
          [](PythonSession& session) {
            session.run("check_replicas", Stage::agreed, [](Session& s) { s.check_replicas(); });
          },
          R"(Compares what trainer ranks hold as replicas of each other. Every rank calls it.

Raises:
    crossmesh.Error: mismatch, naming the tensor, two ranks and both digests.
)")
      .def(
          "exchange",
          [](PythonSession& session, const std::string& tag, const nb::object& value) {
            const nlohmann::json own = json_of(value);
            const auto all = session.run("exchange", Stage::joined,
                                         [&](Session& s) { return s.exchange(tag, own); });
            nb::list values;
            for (const nlohmann::json& given : all) values.append(python_of(given));
            return values;
          },
          "tag"_a, "value"_a,
          nb::sig("def exchange(self, tag: str, value: typing.Any) -> list[typing.Any]"),
          R"(Gives everyone's value to everyone, by rank. Every rank calls it.

Args:
    tag: Names the point; the same on every rank.
    value: What JSON has.

Raises:
    crossmesh.Error: mismatch: ranks are at different points.
)")
      .def("leave", &leave, "Ends this rank's part. Every rank calls it.");
}

void bind_moving(nb::class_<PythonSession>& type) {
  type.def(
          "digest",
          [](PythonSession& session, std::int64_t version) {
            session.run("digest", Stage::agreed, [&](Session& s) { s.digest(version); });
          },
          "version"_a,
          R"(Digests the weights of `version` before its update, on a trainer that has time for it.

Raises:
    crossmesh.Error: invalid_argument: this rank is no trainer.
)")
      .def(
          "update",
          [](PythonSession& session, std::int64_t version) {
            return session.run("update", Stage::agreed,
                               [&](Session& s) { return s.update(version); });
          },
          "version"_a,
          R"(Blocks until engines serve the weights of `version`, which are in place. On trainers.

They may be overwritten afterwards. Ctrl-C ends it, here and on every rank.

Raises:
    crossmesh.Error: invalid_argument: versions do not grow, or this rank is no trainer; aborted,
        peer_lost or timed_out, naming the rank and the phase; mismatch: what arrived is not what
        was given. `can_retry` tells whether every rank may try again.
)")
      .def(
          "receive",
          [](PythonSession& session) {
            return session.run("receive", Stage::agreed, [](Session& s) { return s.receive(); });
          },
          R"(Blocks until this rank serves the next version. On engines.

Raises:
    crossmesh.Error: as update; `state` then tells what the parameters hold.
)");
}

void bind_state(nb::class_<PythonSession>& type) {
  type.def_prop_ro(
          "schedule",
          [](PythonSession& session) {
            return session.run("schedule", Stage::agreed,
                               [](Session& s) { return Schedule(s.schedule()); });
          },
          "What the ranks agreed on.")
      .def_prop_ro(
          "state",
          [](PythonSession& session) {
            return session.run("state", Stage::made, [](Session& s) { return s.state(); });
          },
          "What an engine rank serves.")
      .def_prop_ro(
          "can_retry",
          [](PythonSession& session) {
            return session.run("can_retry", Stage::made, [](Session& s) { return s.can_retry(); });
          },
          "Whether the last call failed and ended no more than an attempt.")
      .def_prop_ro(
          "version",
          [](PythonSession& session) {
            return session.run("version", Stage::made, [](Session& s) { return s.version(); });
          },
          "The newest version that this rank knows to be everyone's; 0 before the first.")
      .def(
          "links",
          [](PythonSession& session) {
            return session.run("links", Stage::agreed, [&](Session&) {
              std::map<int, LinkFacts> facts;
              for (const int peer : session.peers()) facts.emplace(peer, session.facts(peer));
              return facts;
            });
          },
          "Returns the way to each rank that this one exchanges weights with.");
}

}  // namespace

void bind_session(nb::module_& m) {
  bind_reports(m);
  nb::class_<PythonSession> type(m, "Session", R"(One rank's part in a job.

`join`, `agree`, then on trainers `update` and on engines `receive`, again and again, then `leave`.
Every call that waits lets other Python threads run, and ends on Ctrl-C in the main thread. A
session belongs to one thread. As a context manager it leaves where nothing was raised, and closes.

Example:
    >>> import threading
    >>> hub, job = crossmesh.InprocHub(), "0123456789abcdef" * 2
    >>> source, target = crossmesh.shard(catalog, "fsdp=1"), crossmesh.lay_out(config, "tp=1")
    >>> def run(rank, layout):
    ...     memory = crossmesh.ParameterMemory.reserve(layout, 0)
    ...     with crossmesh.Session(session=job, source_count=1, target_count=1, rank=rank,
    ...                            transport=crossmesh.make_inproc(hub, job, rank)) as session:
    ...         session.join()
    ...         session.agree(memory)
    ...         if rank == 0:
    ...             session.update(1)
    ...         else:
    ...             session.receive()
    ...             print(session.state)
    >>> trainer = threading.Thread(target=run, args=(0, source))
    >>> trainer.start()
    >>> run(1, target)
    EngineState(kind=whole, version=1)
    >>> trainer.join()
)",
                                 nb::type_slots(session_slots));
  bind_init(type);
  bind_set_up(type);
  bind_moving(type);
  bind_state(type);
  type.def("close", &PythonSession::close,
           "Ends the session without a word; peers take it for lost unless it has left.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__",
          [](PythonSession& session, nb::object raised, nb::object, nb::object) {
            const bool leaves = raised.is_none() && !session.is_closed() &&
                                session.stage() >= Stage::joined && session.stage() < Stage::left;
            if (leaves) leave(session);
            session.close();
          },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"));
  show(type, [](const PythonSession& s) {
    return Facts{fact("rank", s.options().rank), fact("source_count", s.options().source_count),
                 fact("target_count", s.options().target_count)};
  });
}

}  // namespace crossmesh::python
