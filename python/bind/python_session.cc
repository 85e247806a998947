// SPDX-License-Identifier: Apache-2.0
#include "python/bind/python_session.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "crossmesh/base/error.h"
#include "python/bind/arrays.h"

namespace nb = nanobind;

namespace crossmesh::python {
namespace {

// Often enough for a person who presses Ctrl-C, and too seldom to slow a move down.
constexpr std::chrono::milliseconds kLookForSignals{50};

std::string_view verb_before(PythonSession::Stage stage) {
  return stage == PythonSession::Stage::joined ? "join" : "agree";
}

}  // namespace

PythonSession::PythonSession(SessionOptions options, PythonTransport& transport,
                             nb::object on_phase)
    : options_(options), hub_(transport.hub), on_phase_(std::move(on_phase)) {
  if (!transport.transport) {
    throw Error(ErrorCode::invalid_argument, "session: the transport is another session's")
        .with("rank", options.rank)
        .hint("make a transport for each session");
  }
  options.on_wait = [this] { look_for_signals(); };
  if (!on_phase_.is_none()) {
    options.on_phase = [this](Phase phase) {
      call_back("on_phase", [&] { on_phase_(name_of(phase)); });
    };
  }
  transport_ = transport.transport.get();
  session_ = std::make_unique<Session>(std::move(options), std::move(transport.transport));
}

PythonSession::~PythonSession() {
  // Peers in this process may need the GIL before they let go.
  nb::gil_scoped_release release;
  session_.reset();
}

PythonSession::Busy::Busy(PythonSession& session, std::string_view verb) : session_(session) {
  if (!session.is_busy_.exchange(true)) return;
  throw Error(ErrorCode::invalid_argument, std::string(verb) + ": the session is in another call")
      .with("rank", session.options_.rank)
      .hint("a session belongs to one thread");
}

void PythonSession::require(std::string_view verb, Stage needed) const {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::invalid_argument, fmt::format("{}: {}", verb, what))
        .with("rank", options_.rank);
  };
  if (is_closed_) throw refuse("the session is closed");
  if (stage_ == Stage::left) throw refuse("the session has left");
  if (stage_ < needed) throw refuse(fmt::format("{} comes first", verb_before(needed)));
  const bool again =
      (verb == "join" && stage_ > Stage::made) || (verb == "agree" && stage_ > Stage::joined);
  if (again) throw refuse("a session does it once");
}

// Python's handlers run in its main thread alone; in others this finds nothing.
void PythonSession::look_for_signals() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookForSignals) return;
  looked_ = now;
  call_back("signal", [] {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
}

template <typename Call>
void PythonSession::call_back(std::string_view callback, Call&& call) {
  nb::gil_scoped_acquire acquire;
  try {
    call();
  } catch (nb::python_error& error) {
    const std::string type = nb::cast<std::string>(error.type().attr("__name__"));
    const std::string text = nb::cast<std::string>(nb::str(error.value()));
    if (!raised_) raised_.emplace(std::move(error));
    throw Error(ErrorCode::aborted, "session: a callback raised an exception")
        .with("callback", callback)
        .with("exception", text.empty() ? type : type + ": " + text)
        .with("rank", options_.rank);
  }
}

FallbackLoader PythonSession::hold(nb::object memory, nb::object loader, nb::handle self) {
  memory_ = std::move(memory);
  loader_ = std::move(loader);
  self_ = self;
  if (loader_.is_none()) return {};
  return [this](const TensorInfo& tensor, std::span<const std::byte> bytes) {
    call_back("loader", [&] { load(tensor, bytes); });
  };
}

void PythonSession::load(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  // Every view of the bytes holds the owner, which holds this session and with it the bytes.
  const nb::object owner = nb::capsule(self_.inc_ref().ptr(), [](void* self) noexcept {
    nb::handle(static_cast<PyObject*>(self)).dec_ref();
  });
  nb::object view = bytes_view(bytes.data(), static_cast<std::int64_t>(bytes.size()), false, owner);
  const auto end_views = [&] {
    PyObject* released = PyObject_CallMethod(view.ptr(), "release", nullptr);
    if (!released) PyErr_Clear();
    Py_XDECREF(released);
    view.reset();
    if (Py_REFCNT(owner.ptr()) > 1) PyGC_Collect();
    has_kept_views_ |= Py_REFCNT(owner.ptr()) > 1;
    return Py_REFCNT(owner.ptr()) == 1;
  };
  try {
    loader_(nb::cast(tensor, nb::rv_policy::copy), view);
  } catch (nb::python_error&) {
    end_views();
    throw;
  }
  if (end_views()) return;
  PyErr_SetString(PyExc_BufferError,
                  "the loader keeps a view of a tensor whose bytes are gone; copy what it keeps");
  throw nb::python_error();
}

void PythonSession::close() {
  const Busy busy(*this, "close");
  is_closed_ = true;
  drop_callbacks();
  if (has_kept_views_) return;
  {
    nb::gil_scoped_release release;
    session_.reset();
  }
  memory_ = nb::none();
}

int PythonSession::traverse(visitproc visit, void* argument) const {
  for (const nb::object* object : {&hub_, &on_phase_, &memory_, &loader_}) {
    if (const int result = object->is_valid() ? visit(object->ptr(), argument) : 0) return result;
  }
  return 0;
}

void PythonSession::drop_callbacks() {
  on_phase_ = nb::none();
  loader_ = nb::none();
}

}  // namespace crossmesh::python
