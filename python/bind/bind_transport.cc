// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include "crossmesh/transport/inproc.h"
#include "crossmesh/transport/shm.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/python_session.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

template <>
struct Words<ShmWay> {
  static constexpr auto kLiteral =
      nb::detail::const_name("typing.Literal['automatic', 'memfd', 'attach', 'ring']");
  static constexpr std::string_view kWhat = "way";
  static constexpr std::pair<std::string_view, ShmWay> kWords[] = {{"automatic", ShmWay::automatic},
                                                                   {"memfd", ShmWay::memfd},
                                                                   {"attach", ShmWay::attach},
                                                                   {"ring", ShmWay::ring}};
};

namespace {

void bind_classes(nb::module_& m) {
  nb::class_<InprocHub> hub(m, "InprocHub", "Where the ranks of one process meet.");
  hub.def(nb::init<>());
  show(hub, [](const InprocHub&) { return Facts{}; });

  nb::class_<PythonTransport> transport(m, "Transport",
                                        "How a rank's bytes travel; a Session takes it.");
  transport.def_prop_ro("name", [](const PythonTransport& t) { return t.name; });
  show(transport, [](const PythonTransport& t) { return Facts{fact("name", t.name)}; });

  nb::class_<LinkFacts> facts(m, "LinkFacts", "The way to a peer, as far as it was gone.");
  facts.def_ro("way", &LinkFacts::way, "`local`, `pointer`, `memfd`, `attach`, `ring`, or several.")
      .def_ro("same_host", &LinkFacts::same_host)
      .def_ro("bytes_pulled", &LinkFacts::bytes_pulled, "By this rank, of the target's bytes.")
      .def_ro("bytes_per_second", &LinkFacts::bytes_per_second, "0 where it was not measured.")
      .def_ro("why_not_attach", &LinkFacts::why_not_attach, "Empty where it works.");
  show(facts, [](const LinkFacts& f) {
    return Facts{fact("way", f.way), fact("bytes_pulled", f.bytes_pulled)};
  });
}

}  // namespace

void bind_transport(nb::module_& m) {
  bind_classes(m);
  m.def(
      "make_inproc",
      [](const nb::object& hub_object, const std::string& session_name, int rank) {
        InprocHub& meeting = nb::cast<InprocHub&>(hub_object);
        auto made = make_inproc({&meeting, session_name, rank});
        const std::string name(made->name());
        return PythonTransport{hub_object, name, std::move(made)};
      },
      "hub"_a, "session_name"_a, "rank"_a,
      nb::sig("def make_inproc(hub: InprocHub, session_name: str, rank: int) -> Transport"),
      R"(Returns the transport of a rank that is a thread of this process.

Args:
    hub: The same object for all ranks; it is kept alive.
    session_name: 32 lower-case hexadecimal digits.
    rank: Among all ranks of the job.

Raises:
    crossmesh.Error: invalid_argument: the rank is none, or is in the hub already; io_failed.

Example:
    >>> crossmesh.make_inproc(crossmesh.InprocHub(), "0" * 32, 0)
    Transport(name=inproc)
)");
  m.def(
      "make_shm",
      [](std::string session_name, int rank, const Word<ShmWay>& way, bool copies_within_process,
         std::int64_t ring_bytes) {
        auto made =
            make_shm({std::move(session_name), rank, way.get(), copies_within_process, ring_bytes});
        const std::string name(made->name());
        return PythonTransport{nb::none(), name, std::move(made)};
      },
      "session_name"_a, "rank"_a, nb::kw_only(), "way"_a = "automatic",
      "copies_within_process"_a = true, "ring_bytes"_a = ShmOptions().ring_bytes,
      R"(Returns the transport of a rank that is a process of this host.

Args:
    session_name: 32 lower-case hexadecimal digits; no other session is let in.
    rank: Among all ranks of the job.
    way: `"automatic"`, or `"memfd"`, `"attach"` or `"ring"` alone; the same on every rank.
    copies_within_process: Whether ranks of one process copy where the memory is.
    ring_bytes: Of the ring for one peer.

Raises:
    crossmesh.Error: invalid_argument: the session's name, the rank or the way is none;
        limit_exceeded: the ring is smaller than 16 KiB; io_failed.

Example:
    >>> crossmesh.make_shm("0123456789abcdef" * 2, 0)
    Transport(name=shm)
)");
}

}  // namespace crossmesh::python
