// SPDX-License-Identifier: Apache-2.0
// Copies and conversions beside ONE memcpy of as many bytes, round by round in one run. The
// movers are processes of their own that read shared memory, which this process rewrites before
// each round, and write private memory that was touched before: what an update does.
// `ratio` is the median seconds of that memcpy over those of the copy: 1 is the speed of memory.
// `cpu_ratio` is the same of the movers' processor time, which other load disturbs less.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/memory/copy.h"

namespace crossmesh {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr int kRounds = 11;

// One transfer of an update.
struct Copy {
  std::int64_t source_offset_bytes = 0;
  std::int64_t target_offset_bytes = 0;
  LoopNest nest;
  DType source_dtype = DType::u8;
  DType target_dtype = DType::u8;
};

// What one process moves. Its target is as large as its copies write.
struct Work {
  std::vector<Copy> copies;
  std::int64_t source_bytes = 0;
  std::int64_t target_bytes = 0;
};

enum class Mover : char { one_memcpy, memcpy_per_run, crossmesh, stop };

// Where the nest converts, as many bytes as the target takes, or fewer.
void copy_runs(const std::byte* source, std::byte* target, const LoopNest& nest, int d = 0) {
  if (d == nest.counts.size()) {
    const std::int64_t bytes = std::min(nest.source_element_bytes, nest.target_element_bytes);
    std::memcpy(target, source, static_cast<std::size_t>(nest.run_count * bytes));
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[d]; ++i) {
    copy_runs(source + i * nest.source_strides[d], target + i * nest.target_strides[d], nest,
              d + 1);
  }
}

void move(Mover mover, const Work& work, const std::byte* source, std::byte* target) {
  if (mover == Mover::one_memcpy) {
    std::memcpy(target, source, static_cast<std::size_t>(work.target_bytes));
    return;
  }
  for (const Copy& c : work.copies) {
    const std::byte* from = source + c.source_offset_bytes;
    std::byte* to = target + c.target_offset_bytes;
    if (mover == Mover::memcpy_per_run) {
      copy_runs(from, to, c.nest);
    } else if (c.source_dtype == c.target_dtype) {
      copy(from, to, c.nest, StoreHint::streaming);
    } else {
      convert(from, to, c.nest, c.source_dtype, c.target_dtype);
    }
  }
  finish_streaming();
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Keeps this process on one processor; two movers on the same would measure the scheduler.
void stay_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(processor), &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

// A process that moves `work` when a Mover arrives on its pipe, and answers with its processor
// seconds when it is done.
class Worker {
 public:
  Worker(const Work& work, const SharedMemory& source, int processor) {
    int start[2];
    int done[2];
    if (::pipe(start) != 0 || ::pipe(done) != 0) std::abort();
    child_ = ::fork();
    if (child_ == 0) {
      ::close(start[1]);
      stay_on(processor);
      serve(work, source, start[0], done[1]);
      ::_exit(0);
    }
    ::close(start[0]);
    ::close(done[1]);
    start_ = FileDescriptor(start[1]);
    done_ = FileDescriptor(done[0]);
    wait();
  }
  Worker(Worker&&) = delete;
  ~Worker() {
    start(Mover::stop);
    ::waitpid(child_, nullptr, 0);
  }

  void start(Mover mover) {
    if (::write(start_.get(), &mover, 1) != 1) std::abort();
  }
  double wait() {
    double seconds = 0;
    if (::read(done_.get(), &seconds, sizeof(seconds)) != sizeof(seconds)) std::abort();
    return seconds;
  }

 private:
  static void serve(const Work& work, const SharedMemory& memory, int start, int done) {
    const Mapping source =
        map_shared(memory.fd.get(), memory.mapping.bytes(), MapAccess::read_only);
    const Mapping target = reserve_private(work.target_bytes);
    Mover mover = Mover::one_memcpy;
    do {
      const double begin = processor_seconds();
      move(mover, work, source.data(), target.data());
      const double seconds = processor_seconds() - begin;
      if (::write(done, &seconds, sizeof(seconds)) != sizeof(seconds)) return;
    } while (::read(start, &mover, 1) == 1 && mover != Mover::stop);
  }

  pid_t child_ = -1;
  FileDescriptor start_;
  FileDescriptor done_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

struct Seconds {
  double wall = 0;       // until the last worker is done
  double processor = 0;  // of all workers
};

Seconds seconds_of(std::vector<std::unique_ptr<Worker>>& workers, Mover mover) {
  const auto begin = std::chrono::steady_clock::now();
  Seconds seconds;
  for (auto& worker : workers) worker->start(mover);
  for (auto& worker : workers) seconds.processor += worker->wait();
  const auto end = std::chrono::steady_clock::now();
  seconds.wall = std::chrono::duration<double>(end - begin).count();
  return seconds;
}

void measure(benchmark::State& state, const std::vector<Work>& works) {
  std::int64_t bytes = 0;
  std::int64_t source_bytes = 0;
  for (const Work& work : works) {
    bytes += work.target_bytes;
    source_bytes = std::max({source_bytes, work.source_bytes, work.target_bytes});
  }
  const SharedMemory source = reserve_shared("memory_bench", source_bytes);
  std::vector<std::unique_ptr<Worker>> workers;
  for (const Work& work : works) {
    workers.push_back(std::make_unique<Worker>(work, source, static_cast<int>(workers.size())));
  }

  std::vector<double> wall[3];
  std::vector<double> processor[3];
  int round = 0;
  for (auto _ : state) {
    for (const Mover mover : {Mover::one_memcpy, Mover::memcpy_per_run, Mover::crossmesh}) {
      std::memset(source.mapping.data(), ++round, static_cast<std::size_t>(source_bytes));
      const Seconds seconds = seconds_of(workers, mover);
      wall[static_cast<int>(mover)].push_back(seconds.wall);
      processor[static_cast<int>(mover)].push_back(seconds.processor);
    }
    state.SetIterationTime(wall[2].back());
  }
  state.counters["GB/s"] = static_cast<double>(bytes) / median(wall[2]) / 1e9;
  state.counters["ratio"] = median(wall[0]) / median(wall[2]);
  state.counters["cpu_ratio"] = median(processor[0]) / median(processor[2]);
  state.counters["cpu_ratio_to_memcpy_per_run"] = median(processor[1]) / median(processor[2]);
}

// Work that fills the target front to back with equal copies.
Work repeated(const Copy& copy, std::int64_t times, std::int64_t source_step,
              std::int64_t target_step) {
  Work work;
  for (std::int64_t i = 0; i < times; ++i) {
    work.copies.push_back(copy);
    work.copies.back().source_offset_bytes += i * source_step;
    work.copies.back().target_offset_bytes += i * target_step;
  }
  work.source_bytes = times * source_step;
  work.target_bytes = times * target_step;
  return work;
}

// 512 rows of a matrix whose rows are cut in two, again and again.
Work strided_rows(std::int64_t run_bytes, std::int64_t bytes, int half) {
  constexpr std::int64_t kRows = 512;
  const Copy copy{half * run_bytes, 0, {{kRows}, {2 * run_bytes}, {run_bytes}, run_bytes, 1, 1}};
  const std::int64_t step = kRows * run_bytes;
  return repeated(copy, bytes / step, 2 * step, step);
}

Work contiguous(std::int64_t run_bytes, std::int64_t bytes, int half) {
  const Copy copy{half * run_bytes, 0, {{}, {}, {}, run_bytes, 1, 1}};
  return repeated(copy, bytes / run_bytes, 2 * run_bytes, run_bytes);
}

// Adds a [rows, columns] bf16 matrix, half of which goes to this engine rank of two, as two
// trainer ranks hold it: each half of the rows.
struct Matrix {
  std::int64_t rows;
  std::int64_t columns;
  bool splits_columns;
};

void append(Work& work, const Matrix& matrix, int half) {
  const std::int64_t bytes = 2 * matrix.rows * matrix.columns;
  if (matrix.splits_columns) {
    const std::int64_t run = matrix.columns / 2;
    for (int shard = 0; shard < 2; ++shard) {
      work.copies.push_back({work.source_bytes + shard * bytes / 2 + half * 2 * run,
                             work.target_bytes + shard * bytes / 4,
                             {{matrix.rows / 2}, {4 * run}, {2 * run}, run, 2, 2},
                             DType::bf16,
                             DType::bf16});
    }
  } else {
    work.copies.push_back({work.source_bytes + half * bytes / 2,
                           work.target_bytes,
                           {{}, {}, {}, bytes / 4, 2, 2},
                           DType::bf16,
                           DType::bf16});
  }
  work.source_bytes += bytes;
  work.target_bytes += bytes / 2;
}

// What one of two engine ranks wants of Qwen3-0.6B, norms aside.
Work qwen3_600m(int half) {
  constexpr Matrix kLayer[] = {{2048, 1024, false}, {1024, 1024, false}, {1024, 1024, false},
                               {1024, 2048, true},  {3072, 1024, false}, {3072, 1024, false},
                               {1024, 3072, true}};
  Work work;
  append(work, {151936, 1024, false}, half);
  for (int layer = 0; layer < 28; ++layer) {
    for (const Matrix& matrix : kLayer) append(work, matrix, half);
  }
  return work;
}

// What one of two engine ranks wants of the experts of Qwen3-30B-A3B at a sixteenth of its width:
// many small tensors, and runs of 48 bytes.
Work narrow_experts(int half) {
  constexpr Matrix kExpert[] = {{48, 128, false}, {48, 128, false}, {128, 48, true}};
  Work work;
  for (int expert = 0; expert < 48 * 128; ++expert) {
    for (const Matrix& matrix : kExpert) append(work, matrix, half);
  }
  return work;
}

// [rows, columns] becomes [columns, rows].
Work transpose(std::int64_t rows, std::int64_t columns, std::int32_t element, std::int64_t times) {
  const Copy copy{0,
                  0,
                  {{columns, rows},
                   {element, columns * element},
                   {rows * element, element},
                   1,
                   element,
                   element}};
  return repeated(copy, times, rows * columns * element, rows * columns * element);
}

Work cast(DType source, DType target, std::int64_t elements) {
  const auto source_size = static_cast<std::int32_t>(byte_size(source));
  const auto target_size = static_cast<std::int32_t>(byte_size(target));
  const Copy copy{0, 0, {{}, {}, {}, elements, source_size, target_size}, source, target};
  return repeated(copy, 1, elements * source_size, elements * target_size);
}

Work short_runs(std::int64_t run_bytes, std::int64_t runs) {
  const Copy copy{0, 0, {{runs}, {2 * run_bytes}, {run_bytes}, run_bytes, 1, 1}};
  return repeated(copy, 1, 2 * run_bytes * runs, run_bytes * runs);
}

void add(const std::string& name, std::vector<Work> works) {
  benchmark::RegisterBenchmark(
      name.c_str(), [works = std::move(works)](benchmark::State& state) { measure(state, works); })
      ->Iterations(kRounds)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void add_all() {
  constexpr std::int64_t kBytes = 256 * kMebibyte;
  add("two_processes/qwen3_600m", {qwen3_600m(0), qwen3_600m(1)});
  add("two_processes/narrow_experts", {narrow_experts(0), narrow_experts(1)});
  for (const std::int64_t run : {1 * kMebibyte, 64 * kMebibyte}) {
    add("two_processes/runs_of_" + std::to_string(run / kMebibyte) + "_mib",
        {contiguous(run, kBytes, 0), contiguous(run, kBytes, 1)});
  }
  for (const std::int64_t run : {512, 1024, 2048, 3000, 3072}) {
    add("two_processes/rows_of_" + std::to_string(run),
        {strided_rows(run, kBytes, 0), strided_rows(run, kBytes, 1)});
  }
  add("one_process/qwen3_600m", {qwen3_600m(0)});
  add("one_process/runs_of_64_mib", {contiguous(64 * kMebibyte, kBytes, 0)});
  for (const std::int64_t run : {1024, 2048, 3072}) {
    add("one_process/rows_of_" + std::to_string(run), {strided_rows(run, kBytes, 0)});
  }
  for (const std::int64_t run : {24, 48, 100, 256}) {
    add("one_process/runs_of_" + std::to_string(run), {short_runs(run, 1'000'000)});
  }
  add("one_process/transpose_16_bit", {transpose(4096, 4096, 2, 2)});
  add("one_process/transpose_32_bit", {transpose(4096, 4096, 4, 1)});
  constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
  for (const DType source : kFloats) {
    for (const DType target : kFloats) {
      if (source == target) continue;
      add("one_process/cast_" + std::string(name_of(source)) + "_" + std::string(name_of(target)),
          {cast(source, target, 32 * kMebibyte)});
    }
  }
}

}  // namespace
}  // namespace crossmesh

int main(int argc, char** argv) {
  crossmesh::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
