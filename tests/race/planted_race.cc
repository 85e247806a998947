// SPDX-License-Identifier: Apache-2.0
// A session with a race planted in it: every rank counts phases in one unguarded number, inside the
// session's own calls. Under ThreadSanitizer, with the project's suppressions, it must be reported;
// otherwise a clean run of the suites would mean nothing.
#include <cstdio>
#include <thread>
#include <vector>

#include "crossmesh/session/session.h"
#include "crossmesh/transport/inproc.h"

int main() {
  using namespace crossmesh;
  constexpr int kRanks = 3;
  const std::string name = "0dd0dd0dd0dd0dd0dd0dd0dd0dd0dd0d";
  InprocHub hub;
  int phases = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      SessionOptions options;
      options.session = name;
      options.source_count = 1;
      options.target_count = kRanks - 1;
      options.rank = rank;
      options.on_phase = [&](Phase) { ++phases; };
      Session session(options, make_inproc({&hub, name, rank}));
      session.join();
      for (int i = 0; i < 20; ++i) session.exchange("round", i);
      session.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d phases\n", phases);
  return 0;
}
