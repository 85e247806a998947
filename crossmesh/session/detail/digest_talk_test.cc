// SPDX-License-Identifier: Apache-2.0
// Whole jobs whose bytes are changed on their way: two trainers that hold rows, two replicas of two
// engines that hold columns, and tensors of every width, cast and opaque ones among them.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "crossmesh/layout/interner.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/memory/copy.h"
#include "crossmesh/session/place.h"
#include "crossmesh/session/session.h"
#include "crossmesh/transport/inproc.h"

namespace crossmesh {
namespace {

constexpr std::int64_t kRows = 13;
constexpr std::int64_t kColumns = 22;
constexpr int kTrainers = 2;

struct TestTensor {
  std::string name;
  DType source;
  DType target;
};

const std::vector<TestTensor>& tensors() {
  static const std::vector<TestTensor> all = {
      {"layers.0.bf16", DType::bf16, DType::bf16},
      {"layers.0.narrowed", DType::f32, DType::bf16},
      {"layers.0.widened", DType::f16, DType::f32},
      {"layers.1.fp8", DType::f8_e4m3, DType::f8_e4m3},
      {"layers.1.f64", DType::f64, DType::f64},
      {"layers.1.bool", DType::boolean, DType::boolean},
      {"layers.2.i32", DType::i32, DType::i32},
      {"layers.2.opaque", DType::f16, DType::f16},
  };
  return all;
}

// One parameter per tensor; `boxes[role]` is what each rank holds.
Layout layout_of(const std::vector<Box>& boxes, const std::vector<int>& replicas, bool is_source) {
  Layout layout;
  layout.rank_count = static_cast<int>(replicas.size());
  layout.replica_of_rank = replicas;
  Interner interner(layout);
  Binding binding;
  for (std::size_t rank = 0; rank < replicas.size(); ++rank) {
    binding.role_of_rank.push_back(static_cast<int>(rank % boxes.size()));
  }
  if (!is_source) layout.reasons = {"asked for"};
  for (const TestTensor& tensor : tensors()) {
    const DType dtype = is_source ? tensor.source : tensor.target;
    LayoutClass geometry{Space::plain(std::vector<std::int64_t>{kRows, kColumns}), dtype, {}};
    ParameterClass shape{dtype, {}, {}, {}};
    for (const Box& box : boxes) {
      geometry.pieces_of_role.push_back({{box, {0, contiguous_strides(box.shape)}}});
      shape.shape_of_role.push_back(box.shape);
      shape.strides_of_role.push_back(contiguous_strides(box.shape));
    }
    const int index = static_cast<int>(layout.tensors.size());
    layout.tensors.push_back({tensor.name, dtype, {kRows, kColumns}});
    layout.parameters.push_back(
        {tensor.name, interner.parameter_class(shape), interner.binding(binding), index});
    const bool is_opaque = !is_source && tensor.name == "layers.2.opaque";
    layout.instances.push_back({index, index, interner.layout_class(geometry),
                                interner.binding(binding), 0, is_opaque ? 0 : -1});
  }
  return layout;
}

// What the element is at the source: no number that a cast rounds, and none that looks like
// another.
void write_element(DType dtype, std::byte* at, std::int64_t value) {
  const auto small = static_cast<float>(value % 97 + 1);
  if (dtype == DType::f32) {
    std::memcpy(at, &small, 4);
  } else if (dtype == DType::f16 || dtype == DType::bf16) {
    convert(reinterpret_cast<const std::byte*>(&small), at, {{}, {}, {}, 1, 4, 2}, DType::f32,
            dtype);
  } else {
    std::memcpy(at, &value, static_cast<std::size_t>(byte_size(dtype)));
  }
}

struct RankMemory {
  RankMemory(const Layout& own_layout, int own_rank) : layout(own_layout), rank(own_rank) {
    const Placement placement = place_parameters(layout, rank);
    memory.places = placement.places;
    shared = reserve_shared("crossmesh-test", placement.bytes);
    memory.buffers = {{shared.mapping.data(), placement.bytes, shared.fd.get(), 0}};
  }

  // Calls visit(place, row, column) for the elements of one tensor.
  template <typename Visit>
  void visit(int tensor, const Visit& call) const {
    const Box box = pieces(layout, rank, tensor).front().piece.box;
    const std::int64_t width = byte_size(layout.tensors[static_cast<std::size_t>(tensor)].dtype);
    std::byte* at =
        shared.mapping.data() + memory.places[static_cast<std::size_t>(tensor)].offset_bytes;
    for (std::int64_t r = 0; r < box.shape[0]; ++r) {
      for (std::int64_t c = 0; c < box.shape[1]; ++c, at += width) {
        call(at, box.origin[0] + r, box.origin[1] + c);
      }
    }
  }
  static std::int64_t value_at(int tensor, std::int64_t row, std::int64_t column, int version) {
    return row * kColumns + column + 7 * tensor + 31 * version;
  }
  void write(int version) {
    for (int t = 0; t < static_cast<int>(tensors().size()); ++t) {
      visit(t, [&](std::byte* at, std::int64_t r, std::int64_t c) {
        write_element(tensors()[static_cast<std::size_t>(t)].source, at,
                      value_at(t, r, c, version));
      });
    }
  }
  // Elements of the tensor that are not what the trainers hold, cast.
  int wrong_elements(int tensor, int version) const {
    const TestTensor& info = tensors()[static_cast<std::size_t>(tensor)];
    const auto source_width = static_cast<std::int32_t>(byte_size(info.source));
    const auto target_width = static_cast<std::int32_t>(byte_size(info.target));
    int wrong = 0;
    visit(tensor, [&](const std::byte* at, std::int64_t r, std::int64_t c) {
      std::array<std::byte, 8> source{}, expected{};
      write_element(info.source, source.data(), value_at(tensor, r, c, version));
      convert(source.data(), expected.data(), {{}, {}, {}, 1, source_width, target_width},
              info.source, info.target);
      wrong += std::memcmp(at, expected.data(), static_cast<std::size_t>(target_width)) != 0;
    });
    return wrong;
  }

  const Layout& layout;
  int rank;
  SharedMemory shared;
  ParameterMemory memory;
};

// A flip of one bit of what a trainer gives, once it is offered.
struct Flip {
  int trainer = 0;
  int batch = 0;  // among those that the trainer posts, from 0
  std::uint64_t place = 0;
  int engine = -1;  // whom it was given to; set when it was done
};

// Others may be reading the byte, as they may when hardware flips it: ThreadSanitizer is not asked.
__attribute__((no_sanitize("thread"), noinline)) void toggle(unsigned char* byte, int bit) {
  *byte = static_cast<unsigned char>(*byte ^ (1U << bit));
}

// Passes everything on to another transport, and flips.
class FlippingTransport final : public Transport {
 public:
  FlippingTransport(std::unique_ptr<Transport> inner, Flip* flip)
      : inner_(std::move(inner)), flip_(flip) {}

  std::string_view name() const override { return inner_->name(); }
  Region enroll(const Buffer& buffer) override {
    buffers_.push_back(buffer);
    return inner_->enroll(buffer);
  }
  void retire(Region region) override { inner_->retire(region); }
  std::string address() const override { return inner_->address(); }
  void connect(int peer, const std::string& address, Deadline deadline) override {
    inner_->connect(peer, address, deadline);
  }
  void disconnect(int peer) override { inner_->disconnect(peer); }
  Ticket post(const Batch& batch) override {
    const bool is_given = batch.direction == Direction::give && !batch.transfers.empty();
    if (flip_ != nullptr && is_given && posted_++ == flip_->batch) flip(batch);
    return inner_->post(batch);
  }
  bool advance(std::int64_t slice_bytes) override { return inner_->advance(slice_bytes); }
  Progress progress(const Ticket& ticket) const override { return inner_->progress(ticket); }
  std::vector<int> wake_fds() const override { return inner_->wake_fds(); }
  void cancel(Attempt attempt, Deadline deadline) override { inner_->cancel(attempt, deadline); }
  LinkFacts facts(int peer) const override { return inner_->facts(peer); }
  std::vector<int> peers() const override { return inner_->peers(); }

 private:
  void flip(const Batch& batch) {
    std::mt19937_64 random(flip_->place);
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    const Transfer& transfer =
        batch.transfers[static_cast<std::size_t>(below(std::ssize(batch.transfers)))];
    const LoopNest& nest = transfer.nest;
    const std::int64_t width = nest.source_element_bytes;
    std::int64_t at = transfer.source_offset_bytes + below(nest.run_count) * width;
    for (int d = 0; d < nest.counts.size(); ++d) {
      at += below(nest.counts[d]) * nest.source_strides[d];
    }
    // Where a cast drops the low bits, a high one.
    const std::int64_t lost_bits = std::max<std::int64_t>(0, width - nest.target_element_bytes) * 8;
    const std::int64_t bit = lost_bits + below(width * 8 - lost_bits);
    std::byte* element = buffers_[static_cast<std::size_t>(transfer.source_region)].data + at;
    toggle(reinterpret_cast<unsigned char*>(element) + bit / 8, static_cast<int>(bit % 8));
    flip_->engine = batch.peer - kTrainers;
  }

  std::unique_ptr<Transport> inner_;
  Flip* flip_;
  int posted_ = 0;
  std::vector<Buffer> buffers_;
};

struct Result {
  std::vector<std::string> errors;               // by rank
  std::vector<std::string> states;               // of the engines
  std::vector<std::vector<int>> wrong_elements;  // of each engine, by tensor
  std::vector<UpdateReport> reports;             // by rank, of the last update
};

struct Job {
  DigestMode mode = DigestMode::on;
  ScheduleOptions options;
  bool digests_first = true;
  int first_version = 1;
  int last_version = 1;
  std::optional<Flip> flip;  // in the first update
  std::optional<std::pair<int, DigestMode>> other_mode;
  std::chrono::milliseconds timeout{10'000};
  std::function<void(int, Phase)> on_phase = [](int, Phase) {};
  std::function<void(int)> on_error = [](int) {};
  Layout source = layout_of({{{0, 0}, {7, kColumns}}, {{7, 0}, {6, kColumns}}}, {0, 0}, true);
  Layout target = layout_of({{{0, 0}, {kRows, 9}}, {{0, 9}, {kRows, 13}}}, {0, 0, 1, 1}, false);

  bool is_source(int rank) const { return rank < kTrainers; }

  void run_rank(InprocHub& hub, int rank, Result& result) {
    const auto r = static_cast<std::size_t>(rank);
    SessionOptions session;
    session.session = kName;
    session.source_count = kTrainers;
    session.target_count = target.rank_count;
    session.rank = rank;
    session.digest = other_mode && other_mode->first == rank ? other_mode->second : mode;
    session.timeout = timeout;
    session.on_phase = [&, rank](Phase phase) { on_phase(rank, phase); };
    Flip* own_flip = flip && flip->trainer == rank ? &*flip : nullptr;
    Session own(session, std::make_unique<FlippingTransport>(
                             make_inproc({&hub, std::string(kName), rank}), own_flip));
    const Layout& layout = is_source(rank) ? source : target;
    RankMemory memory(layout, is_source(rank) ? rank : rank - kTrainers);
    int version = first_version;
    try {
      own.join();
      own.agree(layout, options, memory.memory,
                [&](const TensorInfo& tensor, std::span<const std::byte> bytes) {
                  const int t = static_cast<int>(tensors().size()) - 1;
                  ASSERT_EQ(tensor.name, tensors().back().name);
                  memory.visit(t, [&](std::byte* at, std::int64_t row, std::int64_t column) {
                    std::memcpy(at, bytes.data() + (row * kColumns + column) * 2, 2);
                  });
                });
      for (; version <= last_version; ++version) {
        if (is_source(rank)) {
          memory.write(version);
          if (digests_first) own.digest(version);
        }
        result.reports[r] = is_source(rank) ? own.update(version) : own.receive();
        own.exchange("done", version);
      }
      own.leave();
      --version;
    } catch (const Error& error) {
      result.errors[r] = error.text();
      on_error(rank);
    }
    if (is_source(rank)) return;
    result.states[r - kTrainers] = to_string(own.state());
    for (int t = 0; t < static_cast<int>(tensors().size()); ++t) {
      result.wrong_elements[r - kTrainers].push_back(memory.wrong_elements(t, version));
    }
  }

  Result run() {
    const auto engines = static_cast<std::size_t>(target.rank_count);
    const auto ranks = engines + kTrainers;
    Result result{std::vector<std::string>(ranks), std::vector<std::string>(engines),
                  std::vector<std::vector<int>>(engines), std::vector<UpdateReport>(ranks)};
    InprocHub hub;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
      threads.emplace_back([&, rank] { run_rank(hub, rank, result); });
    }
    for (std::thread& thread : threads) thread.join();
    return result;
  }

  // A name of this process's own.
  static inline const std::string kName =
      fmt::format("d19e57d19e57d19e57d19e57{:08x}", static_cast<std::uint32_t>(::getpid()));
};

std::string title(int trainer, int engine) {
  return trainer >= 0 ? fmt::format("trainer {} (rank {})", trainer, trainer)
                      : fmt::format("engine {} (rank {})", engine, engine + kTrainers);
}

std::string fact(const std::string& error, std::string_view key) {
  const std::string begin = fmt::format("\n  {}  ", key);
  const std::size_t at = error.find(begin);
  if (at == std::string::npos) return "";
  return error.substr(at + begin.size(), error.find('\n', at + 1) - at - begin.size());
}

TEST(DigestTalk, reports_nothing_where_nothing_is_changed) {
  for (const DigestMode mode : {DigestMode::off, DigestMode::sampled, DigestMode::on}) {
    for (const bool digests_first : {false, true}) {
      for (const Route route : {Route::direct, Route::packed}) {
        Job job;
        job.mode = mode;
        job.digests_first = digests_first;
        job.options.route = route;
        job.options.staging_bytes_max = 1024;
        job.first_version = 8;
        job.last_version = 10;
        const Result result = job.run();
        EXPECT_EQ(result.errors, std::vector<std::string>(6));
        EXPECT_EQ(result.states, std::vector<std::string>(4, "whole at 10"));
        EXPECT_EQ(result.wrong_elements,
                  std::vector<std::vector<int>>(4, std::vector<int>(tensors().size())));
      }
    }
  }
}

TEST(DigestTalk, counts_what_each_rank_digested) {
  constexpr std::int64_t kTensor = kRows * kColumns;
  Job job;
  const Result on = job.run();
  // Engines of both replicas take the same, which trainers digest once; the opaque tensor is whole
  // for every engine.
  EXPECT_EQ(on.reports[0].digest_bytes, 7 * kColumns * (2 + 2 + 4 + 1 + 8 + 1 + 4 + 2));
  EXPECT_EQ(on.reports[3].digest_bytes, kRows * 13 * (2 + 2 + 4 + 1 + 8 + 1 + 4) + kTensor * 2);
  EXPECT_GT(on.reports[0].digest_seconds, 0);
  EXPECT_GT(on.reports[3].digest_seconds, 0);
  // Tensor 4 of f64 at version 12.
  job.mode = DigestMode::sampled;
  job.first_version = job.last_version = 12;
  const Result sampled = job.run();
  EXPECT_EQ(sampled.reports[0].digest_bytes, 7 * kColumns * 8);
  EXPECT_EQ(sampled.reports[3].digest_bytes, kRows * 13 * 8);
  job.mode = DigestMode::off;
  EXPECT_EQ(job.run().reports[3].digest_bytes, 0);
}

// One hundred random places, half of them on each route.
TEST(DigestTalk, finds_and_names_every_bit_that_is_flipped_on_its_way) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 100; ++i) {
    Job job;
    Flip flip{static_cast<int>(random() % 2), static_cast<int>(random() % 4), random(), -1};
    if (i % 2 == 1) {
      job.options.route = Route::packed;
      job.options.staging_bytes_max = 2048;
      flip.batch = static_cast<int>(random() % 8);
      job.digests_first = i % 4 == 1;
    }
    job.flip = flip;
    const Result result = job.run();
    const std::string& error = result.errors[0];
    SCOPED_TRACE(fmt::format("flip {}: {}", i, error));
    ASSERT_GE(job.flip->engine, 0);
    EXPECT_EQ(result.errors, std::vector<std::string>(6, error));
    ASSERT_TRUE(error.starts_with("digest: an engine did not get what a trainer gave\n"));
    EXPECT_EQ(fact(error, "trainer"), title(flip.trainer, 0));
    EXPECT_EQ(fact(error, "tensors that differ"), "1");
    EXPECT_EQ(fact(error, "version"), "1");
    EXPECT_NE(fact(error, "given"), fact(error, "taken"));
    // A flip in the weights reaches every engine that takes them; one of these speaks first.
    int engine = -1;
    for (int e = 0; e < 4; ++e) {
      if (fact(error, "engine") == title(-1, e)) engine = e;
    }
    ASSERT_GE(engine, 0);
    const auto e = static_cast<std::size_t>(engine);
    EXPECT_EQ(result.states[e], "torn");
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      const int wrong = tensors()[t].name == fact(error, "tensor") ? 1 : 0;
      // The engine's loader puts only its own half of an opaque tensor in place.
      if (wrong == 1 && t + 1 == tensors().size()) continue;
      const int found = result.wrong_elements[e][t];
      // Engines that were given the weights before the flip were perhaps copying the element.
      if (wrong == 1 && engine != job.flip->engine && found == 0) continue;
      EXPECT_EQ(found, wrong) << tensors()[t].name;
    }
  }
}

TEST(DigestTalk, tells_all_that_is_known_of_a_fault) {
  Job job;
  job.target = layout_of({{{0, 0}, {kRows, kColumns}}}, {0}, false);
  job.flip = Flip{1, 0, 3, -1};
  const Result result = job.run();
  EXPECT_EQ(result.errors[2], result.errors[0]);
  EXPECT_EQ(result.errors[0],
            "digest: an engine did not get what a trainer gave\n"
            "  tensor  layers.1.fp8\n"
            "  tensors that differ  1\n"
            "  version  1\n"
            "  trainer  trainer 1 (rank 1)\n"
            "  given  cbfe69ccf89607b0654f70cbdbc0dd00 of 132 bytes\n"
            "  engine  engine 0 (rank 2)\n"
            "  taken  cf1369feeeff0fb05420c8cbdbc0dd00 of 132 bytes\n"
            "  hint  the replica did not commit; weights that are written to during an update "
            "differ as memory errors do: if they are left alone, suspect this host's memory");
}

TEST(DigestTalk, finds_nothing_when_it_is_off_and_a_tensor_in_sixteen_versions_when_sampled) {
  Job job;
  job.mode = DigestMode::off;
  job.flip = Flip{0, 0, 3, -1};
  const Result off = job.run();
  EXPECT_EQ(off.errors, std::vector<std::string>(6));
  job.mode = DigestMode::sampled;
  int found = 0;
  for (int version = 1; version <= 16; ++version) {
    job.first_version = job.last_version = version;
    const std::string error = job.run().errors[0];
    found += error.starts_with("digest: an engine did not get what a trainer gave\n") ? 1 : 0;
  }
  EXPECT_EQ(found, 1);
}

TEST(DigestTalk, a_trainer_that_does_not_say_what_it_gave_is_named) {
  Job job;
  job.timeout = std::chrono::milliseconds(500);
  std::promise<void> given_up;
  std::shared_future<void> until = given_up.get_future().share();
  // Its weights are offered by then, and engines need no more of it to pull them.
  job.on_phase = [&](int rank, Phase phase) {
    if (rank == 1 && phase == Phase::move) until.wait();
    if (rank == 0 && phase == Phase::commit) ADD_FAILURE() << "committed";
  };
  job.on_error = [&](int rank) {
    if (rank == 0) given_up.set_value();
  };
  const std::string error = job.run().errors[0];
  EXPECT_NE(error.find("\n  phase  complete\n  at  trainer 0 (rank 0)\n  waiting for  digests from "
                       "trainer 1 (rank 1); engine 0 (rank 2) of replica 0 to be whole"),
            std::string::npos)
      << error;
}

TEST(DigestTalk, a_rank_with_another_mode_does_not_join) {
  Job job;
  job.other_mode = {4, DigestMode::off};
  const std::string error =
      "join: a rank was started for another job\n  differs in  digest\n"
      "  trainer 0 (rank 0)  \"on\"\n  engine 2 (rank 4)  \"off\"";
  EXPECT_EQ(job.run().errors, std::vector<std::string>(6, error));
}

TEST(DigestMode, sampled_digests_each_tensor_once_in_sixteen_versions) {
  for (int tensor = 0; tensor < 40; ++tensor) {
    for (std::int64_t first = 1; first < 40; ++first) {
      int count = 0;
      for (std::int64_t v = first; v < first + 16; ++v) {
        count += is_digested(DigestMode::sampled, tensor, v);
      }
      EXPECT_EQ(count, 1);
      EXPECT_TRUE(is_digested(DigestMode::on, tensor, first));
      EXPECT_FALSE(is_digested(DigestMode::off, tensor, first));
    }
  }
}

TEST(DigestMode, is_read_by_name) {
  for (const DigestMode mode : {DigestMode::off, DigestMode::sampled, DigestMode::on}) {
    EXPECT_EQ(digest_mode_from_name(name_of(mode)), mode);
  }
  try {
    digest_mode_from_name("maybe");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "session: no such digest mode\n  mode  maybe\n  modes  off, sampled, on");
  }
}

}  // namespace
}  // namespace crossmesh
