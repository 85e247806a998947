// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

int report(const Invocation& invocation, const Error& error) {
  // A summary line that is cut short by a full disk or a closed pipe is not worth a second error.
  std::fflush(stdout);
  fmt::print(stderr, "crossmesh: {}\n", error.text());
  if (invocation.json) {
    const nlohmann::ordered_json body = {
        {"error", {{"code", name_of(error.code())}, {"text", error.text()}}}};
    using Handler = nlohmann::ordered_json::error_handler_t;
    fmt::print("{}\n", body.dump(2, ' ', false, Handler::replace));
  }
  return kExitFailed;
}

int run(const Invocation& invocation) {
  try {
    return invocation.run();
  } catch (const Error& error) {
    return report(invocation, error);
  } catch (const std::bad_alloc&) {
    return report(invocation, Error(ErrorCode::out_of_memory, "run: memory is exhausted"));
  } catch (const std::exception& error) {
    return report(
        invocation,
        Error(ErrorCode::internal, "run: an unexpected exception").with("what", error.what()));
  }
}

int main_of(int argc, char** argv) {
  Invocation invocation;
  CLI::App app("Moves the weights of a model from training ranks into serving ranks, byte-exact.",
               "crossmesh");
  app.require_subcommand(1);
  app.set_version_flag("--version", "crossmesh 0.1.0");
  register_synth(app, invocation);
  register_read(app, invocation);
  register_info(app, invocation);
  register_plan(app, invocation);
  register_layout(app, invocation);
  register_move(app, invocation);
  register_rank(app, invocation);
  register_verify(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  return run(invocation);
}

}  // namespace
}  // namespace crossmesh::cli

int main(int argc, char** argv) {
  // A file that may not grow is an error like any other.
  std::signal(SIGXFSZ, SIG_IGN);
  return crossmesh::cli::main_of(argc, argv);
}
