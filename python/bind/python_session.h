// SPDX-License-Identifier: Apache-2.0
// A session as Python drives it: calls release the GIL, callbacks take it, and what these raise, or
// a signal, ends the call and comes out of it. It decides nothing of its own.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "crossmesh/session/session.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh::python {

// A transport until a session takes it.
struct PythonTransport {
  nanobind::object hub;  // ends after the transport, which is in it
  std::string name;
  std::unique_ptr<Transport> transport;
};

class PythonSession {
 public:
  // What has been called so far; most calls need another before them.
  enum class Stage { made, joined, agreed, left };

  // Requires: `options` without callbacks. Throws: invalid_argument: the transport was taken.
  PythonSession(SessionOptions options, PythonTransport& transport, nanobind::object on_phase);
  ~PythonSession();
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  bool is_source() const { return options_.rank < options_.source_count; }
  int side_rank() const {
    return is_source() ? options_.rank : options_.rank - options_.source_count;
  }
  const SessionOptions& options() const { return options_; }
  Stage stage() const { return stage_; }
  bool is_closed() const { return is_closed_; }

  // Calls `call(session)` without the GIL. Throws: what it throws, or what a callback raised;
  // invalid_argument: the session is closed, in another call, or has not come so far.
  template <typename Call>
  auto run(std::string_view verb, Stage needed, Call&& call) {
    const Busy busy(*this, verb);
    require(verb, needed);
    try {
      nanobind::gil_scoped_release release;
      return call(*session_);
    } catch (const Error&) {
      if (!raised_) throw;
      throw nanobind::python_error(*std::exchange(raised_, std::nullopt));
    }
  }

  void reach(Stage stage) { stage_ = stage; }

  // Keeps the memory and the loader; `self` is this object.
  FallbackLoader hold(nanobind::object memory, nanobind::object loader, nanobind::handle self);
  LinkFacts facts(int peer) const { return transport_->facts(peer); }
  std::vector<int> peers() const { return transport_->peers(); }
  void close();

  // For the collector of cycles.
  int traverse(visitproc visit, void* argument) const;
  void drop_callbacks();

 private:
  class Busy {
   public:
    Busy(PythonSession& session, std::string_view verb);
    ~Busy() { session_.is_busy_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    PythonSession& session_;
  };

  void require(std::string_view verb, Stage needed) const;
  void look_for_signals();
  template <typename Call>
  void call_back(std::string_view callback, Call&& call);
  void load(const TensorInfo& tensor, std::span<const std::byte> bytes);

  SessionOptions options_;
  nanobind::object hub_;
  nanobind::object on_phase_;
  nanobind::object memory_;
  nanobind::object loader_;
  nanobind::handle self_;
  const Transport* transport_ = nullptr;
  std::unique_ptr<Session> session_;
  std::optional<nanobind::python_error> raised_;
  std::chrono::steady_clock::time_point looked_{};
  std::atomic<bool> is_busy_ = false;
  bool is_closed_ = false;
  bool has_kept_views_ = false;  // a loader kept bytes that are the session's
  Stage stage_ = Stage::made;
};

}  // namespace crossmesh::python
