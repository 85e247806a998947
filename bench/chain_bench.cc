// SPDX-License-Identifier: Apache-2.0
// What recording costs: a call that was made before, one that was not, and lowering a copy.
#include <benchmark/benchmark.h>

#include <array>

#include "crossmesh/target/chain.h"
#include "crossmesh/target/lower.h"

namespace crossmesh {
namespace {

constexpr std::array<std::int64_t, 2> kExpert = {768, 2048};

void record_a_whole_tensor(benchmark::State& state) {
  ChainBook book;
  for (auto _ : state) benchmark::DoNotOptimize(book.start(DType::bf16, kExpert));
}
BENCHMARK(record_a_whole_tensor);

void record_a_narrow_again(benchmark::State& state) {
  ChainBook book;
  const int start = book.start(DType::bf16, kExpert);
  for (auto _ : state) benchmark::DoNotOptimize(book.apply(start, Op::narrow(0, 384, 384)));
}
BENCHMARK(record_a_narrow_again);

// The chain of an expert's weight in a stack: three calls and an index.
void record_an_expert_again(benchmark::State& state) {
  ChainBook book;
  for (auto _ : state) {
    const int start = book.start(DType::bf16, kExpert);
    const int part = book.apply_several(book.apply(start, Op::unsqueeze(0)), Op::unbind(0))[0];
    benchmark::DoNotOptimize(book.apply(part, Op::narrow(0, 384, 384)));
  }
}
BENCHMARK(record_an_expert_again);

void record_a_new_narrow(benchmark::State& state) {
  ChainBook book;
  const std::array<std::int64_t, 2> shape = {std::int64_t{1} << 40, 8};
  const int start = book.start(DType::bf16, shape);
  std::int64_t row = 0;
  for (auto _ : state) benchmark::DoNotOptimize(book.apply(start, Op::narrow(0, row++, 1)));
}
BENCHMARK(record_a_new_narrow)->Iterations(200000);

void lower_an_expert(benchmark::State& state) {
  ChainBook book;
  const int start = book.start(DType::bf16, kExpert);
  const ElementMap map = book.element_map(book.apply(start, Op::narrow(0, 384, 384)));
  const CopyTarget target{
      DType::bf16, {{384, 2048}, {768 * 2048, {2048, 1}}}, std::int64_t{128} * 768 * 2048};
  for (auto _ : state) benchmark::DoNotOptimize(lower(map, target));
}
BENCHMARK(lower_an_expert);

void lower_a_transposed_copy(benchmark::State& state) {
  ChainBook book;
  const int start = book.start(DType::bf16, kExpert);
  const ElementMap map = book.element_map(book.apply(book.apply(start, Op::t()), Op::contiguous()));
  const CopyTarget target{DType::bf16, {{2048, 768}, {0, {768, 1}}}, 768 * 2048};
  for (auto _ : state) benchmark::DoNotOptimize(lower(map, target));
}
BENCHMARK(lower_a_transposed_copy);

}  // namespace
}  // namespace crossmesh

BENCHMARK_MAIN();
