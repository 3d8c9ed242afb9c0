// A self-check of the native code without Python: run under sanitizers, and under qemu for aarch64.
// Exits 0 when all holds, else prints what does not.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "../../probes/native/chase.hpp"
#include "../../probes/native/decode/proof.hpp"
#include "../../probes/native/gemm/proof.hpp"
#include "../../probes/native/gemm/tile_help.hpp"
#include "../../probes/native/gemm/trial.hpp"
#include "../../probes/native/isa.hpp"
#include "../../probes/native/kernels.hpp"
#include "../../probes/native/pool.hpp"
#include "../../probes/native/scatter.hpp"
#include "../../probes/native/storage/direct_reader.hpp"
#include "../../probes/native/storage/files.hpp"
#include "../../probes/native/team.hpp"

using namespace k3gate;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) {
    std::printf("FAILED: %s\n", what);
    ++failures;
  }
}

std::uint64_t closed_form(std::uint64_t words, std::uint64_t seed) {
  const std::uint64_t pairs = words % 2 == 0 ? (words / 2) * (words + 1) : words * ((words + 1) / 2);
  return words * seed + kPatternStep * pairs;
}

bool runs_here(const Kernel& kernel) {
  for (const Isa isa : supported_isas()) {
    if (isa == kernel.isa) return true;
  }
  return false;
}

void check_kernels() {
  for (const Isa isa : supported_isas())
    expect(find_kernel("read", name_of(isa)) != nullptr, "each supported instruction set has a read kernel");
  for (const Kernel& kernel : kernels()) {
    if (kernel.stores() || !runs_here(kernel)) continue;
    for (std::size_t words : {0UL, 1UL, 7UL, 8UL, 63UL, 64UL, 65UL, 1000UL, 4099UL, 12'345UL}) {
      for (std::size_t offset = 0; offset < 9; ++offset) {
        std::vector<std::uint64_t> data(words + offset);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < data.size(); ++i) {
          data[i] = i * i * 0x123456789abcdefULL + 5;
          if (i >= offset) sum += data[i];
        }
        expect(kernel.run(Arrays{.to = data.data() + offset, .words = words}) == sum, kernel.name.data());
      }
    }
  }
}

void check_team() {
  const std::vector<int> allowed = allowed_cpus();
  expect(!allowed.empty(), "some CPU is allowed");
  std::vector<int> cpus(allowed.begin(), allowed.begin() + (allowed.size() > 1 ? 2 : 1));
  Pool pool(std::size_t{4} << 20, Pages::kTransparent);
  Team team(cpus);
  std::vector<std::vector<Part>> parts(cpus.size());
  const std::size_t share = pool.bytes() / cpus.size();
  for (std::size_t i = 0; i < cpus.size(); ++i) parts[i].push_back(Part{&pool, i * share, share, 42});
  const Region touched = team.touch(parts);
  for (const ThreadReport& report : touched.threads) expect(report.error == 0, "touching succeeds");
  for (const ThreadReport& report : team.verify(parts).threads)
    expect(report.value == 0, "the pattern is found");
  for (const Isa isa : supported_isas()) {
    const Region region = team.run(*find_kernel("read", name_of(isa)), parts, 3);
    std::uint64_t sum = 0;
    for (const ThreadReport& report : region.threads) sum += report.value;
    expect(sum == 3 * closed_form(pool.bytes() / 8, 42), "three passes add up to the closed form");
    expect(region.seconds > 0, "a region takes time");
  }
  pool.words()[1234] ^= 1;
  std::uint64_t wrong = 0;
  for (const ThreadReport& report : team.verify(parts).threads) wrong += report.value;
  expect(wrong == 1, "one flipped bit is one wrong word");
  bool refused = false;
  try {
    team.verify({cpus.size(), {Part{&pool, pool.bytes(), 8, 0}}});
  } catch (const std::out_of_range&) {
    refused = true;
  }
  expect(refused, "a part outside its pool is refused");
  pool.close();
  pool.close();
}

// Parts of odd places and sizes; what is outside the written array must keep the pattern.
void check_stores() {
  Pool pool(std::size_t{2} << 20, Pages::kSmall);
  Team team({allowed_cpus().front()});
  const std::vector<std::vector<Part>> whole = {{Part{&pool, 0, pool.bytes(), 9}}};
  team.touch(whole);
  for (const Kernel& kernel : store_kernels()) {
    if (!runs_here(kernel)) continue;
    for (std::size_t offset : {0UL, 8UL, 56UL, 4096UL}) {
      for (std::size_t bytes : {0UL, 8UL, 72UL, 776UL, 4096UL, 100'008UL, 700'000UL}) {
        team.prepare(kernel, whole);
        const Part part{&pool, offset, bytes, 9};
        const std::vector<std::vector<Part>> parts = {{part}};
        team.prepare(kernel, parts);
        const std::uint64_t words = arrays_of(kernel, part).words;
        expect(team.count_unwritten(kernel, parts).threads[0].value == words, "nothing is there beforehand");
        const Region region = team.run(kernel, parts, 2);
        expect(region.threads[0].value == 0 && region.threads[0].bytes == 16 * words, kernel.name.data());
        expect(team.count_unwritten(kernel, parts).threads[0].value == 0, kernel.name.data());
        if (kernel.work == Work::kTriad) continue;  // its sources are numbers
        expect(team.verify(whole).threads[0].value == words, "only the written array has changed");
      }
    }
  }
}

void check_chase() {
  const std::vector<int> allowed = allowed_cpus();
  const bool two = allowed.size() > 1;
  Team team(std::vector<int>(allowed.begin(), allowed.begin() + (two ? 2 : 1)));
  Pool pool(std::size_t{1} << 20, Pages::kSmall);
  Pool loaded(std::size_t{1} << 20, Pages::kSmall);
  for (std::size_t bytes : {512UL, 4096UL, 100'000UL, 1UL << 20}) {
    for (std::size_t window : {0UL, 4096UL, 12'288UL}) {
      const Part part{&pool, 0, bytes, bytes + window};
      team.build_cycle(0, part, window);
      const std::uint64_t blocks = bytes / kChaseBlock;
      std::vector<bool> seen(blocks);
      std::size_t at = 0;
      for (std::uint64_t i = 0; i < blocks; ++i) {
        expect(at % kChaseBlock == 0 && !seen[at / kChaseBlock], "each block is visited once");
        seen[at / kChaseBlock] = true;
        at = team.chase(0, part, 1, at).end;
        if (bytes > 100'000 && i > 50) break;  // a barrier for each step takes its time
      }
      const Chase once = team.chase(0, part, blocks, 0);
      expect(once.end == 0 && once.blocks == blocks, "a whole cycle ends where it began");
      expect(team.chase(0, part, 3 * blocks + 50, 0).end == team.chase(0, part, 50, 0).end, "cycles add up");
    }
  }
  const Part part{&pool, 0, pool.bytes(), 3};
  team.build_cycle(0, part, 0);
  if (two) {
    team.touch({{}, {Part{&loaded, 0, loaded.bytes(), 4}}});
    const std::vector<std::vector<Part>> loads = {{}, {Part{&loaded, 0, loaded.bytes(), 4}}};
    const Kernel* kernel = find_kernel("read", name_of(supported_isas().front()));
    Chase chase;
    // Where others use the CPUs, a loader may get none for as long as so short a walk takes.
    for (int tries = 0; tries < 100 && chase.load_bytes == 0; ++tries)
      chase = team.chase_loaded(0, part, 100'000, 0, Load{kernel, &loads, 10, 1000});
    expect(chase.end == team.chase(0, part, 100'000, 0).end, "the load does not change the walk");
    expect(chase.load_bytes > 0 && chase.load_seconds > 0, "the other thread loads");
    expect(chase.threads[1].value == 0, "every block that was loaded has its sum");
    // Parts that end before where the loader stands, and none of a whole block: it begins anew.
    const std::vector<std::vector<Part>> few = {{}, {Part{&loaded, 0, 8, 4}, Part{&loaded, 64, 808, 4}}};
    for (int walks = 0; walks < 3; ++walks)
      chase = team.chase_loaded(0, part, 100'000, 0, Load{kernel, &few, 10, 1000});
    expect(chase.threads[1].value == 0, "every block of shorter parts has its sum");
  }
  std::vector<std::vector<Part>> all(team.cpus().size());
  all[0].push_back(part);
  team.touch(all);
  bool refused = false;
  try {
    team.chase(0, part, 1, 0);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  expect(refused, "a cycle that was overwritten is not followed");
}

void check_clock() {
  Team team(allowed_cpus());
  const std::vector<double> clocks = team.clocks();
  expect(clocks.size() == team.cpus().size(), "a clock for each thread");
#if defined(__x86_64__)
  for (double clock : clocks) expect(clock > 1e6 && clock < 2e10, "a clock that a core can have");
#else
  for (double clock : clocks) expect(clock == 0, "no clock where no cycles are known");
#endif
}

void check_scatter() {
  for (std::size_t blocks : {2UL, 3UL, 5UL, 64UL, 65UL, 1000UL, 4096UL}) {
    for (std::uint64_t seed : {0UL, 7UL, ~0UL}) {
      Scatter order(blocks, seed, 0);
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<bool> seen(blocks);
        for (std::size_t i = 0; i < blocks; ++i) {
          const std::size_t block = order.next();
          expect(block < blocks && !seen[block], "each block comes once a turn");
          seen[block] = true;
        }
      }
    }
  }
  Team team({allowed_cpus().front()});
  Pool pool(std::size_t{1} << 20, Pages::kSmall);
  const Part part{&pool, 4096, 100'000, 9};
  team.touch({{part}});
  const std::size_t blocks = part.bytes / kChaseBlock;
  std::uint64_t wanted = 0;
  for (std::size_t i = 0; i < blocks; ++i) wanted += pool.words()[(part.offset + i * kChaseBlock) / 8];
  const Chase some = team.scatter(0, part, 17, 0);
  const Chase rest = team.scatter(0, part, blocks - 17, some.end);
  expect(some.threads[0].value + rest.threads[0].value == wanted,
         "a turn loads the first word of each block");
  expect(some.steps == 17 && some.blocks == blocks, "a walk tells its length and that of a turn");
}

void check_products() {
  for (const gemm::Variant& variant : gemm::variants()) {
    const bool tiled = variant.path == gemm::Path::kAmxInt8 || variant.path == gemm::Path::kAmxBf16;
    if (gemm::availability(variant.path).presence == gemm::Presence::kOk) {
      for (const std::size_t tokens : {1UL, 4UL, 33UL}) {
        for (const int spread : {2, 20}) {
          const gemm::Comparison found = gemm::prove(variant, tokens, 37, 416, spread, 5, gemm::Fault::kNone);
          expect(found.ok(), gemm::name_of(variant.path).data());
        }
      }
      expect(!gemm::prove(variant, 2, 37, 416, 2, 5, gemm::Fault::kScale).ok(), "a wrong scale is found");
      expect(gemm::prove_expert(variant, 3, 64, 96, 5, gemm::Fault::kNone).ok(), "an expert is right");
    }
    // Without a CPU that has tiles, their model runs the same code.
    if (!tiled) continue;
    gemm::Variant modelled = variant;
    modelled.run = variant.path == gemm::Path::kAmxInt8
                       ? [](const gemm::Call& call) { gemm::run_modelled(call, gemm::Path::kAmxInt8); }
                       : [](const gemm::Call& call) { gemm::run_modelled(call, gemm::Path::kAmxBf16); };
    for (const int spread : {2, 20})
      expect(gemm::prove(modelled, 18, 37, 416, spread, 5, gemm::Fault::kNone).ok(), "the model of tiles");
  }
  Team team({allowed_cpus().front()});
  gemm::Trial trial(*gemm::find_variant("mxfp4", "generic"), true, 64, 64, std::size_t{1} << 20,
                    Pages::kSmall, -1, 1);
  trial.run(team, 3, 5);
  expect(trial.check(64, 1).ok(), "what was timed is right");
  trial.output(0)[5] *= 2;
  expect(!trial.check(64, 1).ok(), "one wrong output is found");
  // Each thread on weights of its own, as where each node has some; one thread where there is one CPU.
  std::vector<int> cpus = allowed_cpus();
  if (cpus.size() > 2) cpus.resize(2);
  Team both(cpus);
  gemm::Trial other(*gemm::find_variant("mxfp4", "generic"), true, 64, 64, std::size_t{1} << 20,
                    Pages::kSmall, -1, 2);
  std::vector<gemm::Trial*> of_thread = {&trial, &other};
  of_thread.resize(cpus.size());
  for (const std::size_t tokens : {std::size_t{3}, std::size_t{17}}) {
    gemm::Trial::run_together(both, of_thread, tokens, 4);
    expect(trial.check(16, 3).ok(), "the first of two is right");
    if (cpus.size() > 1) expect(other.check(16, 3).ok(), "the second of two is right");
  }
}

void check_decoding() {
  const std::vector<int> allowed = allowed_cpus();
  decode::Setup setup{};
  setup.shape = {.layers = 4,
                 .experts = 6,
                 .dense_layers = 1,
                 .hidden = 64,
                 .width = 64,
                 .inner = 32,
                 .router_rows = 9,
                 .used = 2,
                 .shared = 2,
                 .heads = 2,
                 .head_dim = 32,
                 .query_rank = 32,
                 .cache_rank = 32,
                 .rest = 32,
                 .decay_rank = 32,
                 .convolution = 4,
                 .dense_inner = 64,
                 .block_layers = 3,
                 .vocabulary = 20,
                 .mla = {false, false, false, true}};
  setup.trunk = true;
  setup.pages = Pages::kSmall;
  setup.nodes = {0, 1};
  setup.cpus = {{allowed.front()}, {allowed.back()}};
  setup.batch = 2;
  setup.positions = 3;
  setup.context = 5;
  setup.room = 4;
  for (const gemm::Path path : gemm::paths()) {
    if (gemm::availability(path).presence != gemm::Presence::kOk) continue;
    setup.path = gemm::name_of(path);
    for (const gemm::Format format : {gemm::Format::kBf16, gemm::Format::kQ8_0, gemm::Format::kMxfp4}) {
      setup.format = format;
      for (const decode::Placement placement :
           {decode::Placement::kOwner, decode::Placement::kInterleaved, decode::Placement::kSingle}) {
        setup.placement = placement;
        const decode::Verdict verdict = decode::prove(setup, 1, "");
        expect(verdict.ok, verdict.detail.c_str());
      }
    }
  }
  setup.placement = decode::Placement::kOwner;
  expect(!decode::prove(setup, 1, "lost_row").ok, "a row that is not sent is found");
}

void check_refused_cpu() {
  bool refused = false;
  try {
    Team team({1 << 19});
  } catch (const std::system_error&) {
    refused = true;
  }
  expect(refused, "a CPU that does not exist is refused");
}

// Reads of a file without a name, one by one and with a queue; emulators of other processors have no queue.
void check_storage() {
  constexpr std::uint64_t kBlock = 64 << 10;
  constexpr std::uint64_t kBytes = 64 * kBlock;
  std::FILE* file = std::tmpfile();
  if (file == nullptr) return;
  const int descriptor = fileno(file);
  expect(storage::write_random(descriptor, 0, kBytes, 7) == 0, "random bytes are written");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  expect(storage::count_resident(descriptor, 0, kBytes, pages, resident) == 0, "the page cache is asked");
  expect(pages > 0 && resident <= pages, "pages in memory are counted");
  for (const unsigned depth : {1U, 8U}) {
    try {
      storage::Reader reader({{{descriptor, 0, kBytes / 2}}, {{descriptor, kBytes / 2, kBytes / 2}}}, kBlock,
                             depth, {});
      const storage::ReadRegion region = reader.run(0.05);
      std::uint64_t bytes = 0;
      for (const storage::ReadReport& thread : region.threads) {
        expect(thread.error == 0 && thread.bytes == thread.reads * kBlock, "whole blocks are read");
        bytes += thread.bytes;
      }
      expect(bytes > 0 && region.seconds > 0, "a region has bytes and time");
      storage::Reader beyond({{{descriptor, kBytes, kBlock}}}, kBlock, depth, {});
      expect(beyond.run(0.01).threads[0].error == ENODATA, "the end of a file is told");
    } catch (const std::system_error& error) {
      expect(depth > 1, "reading one by one needs no queue");
    }
  }
  std::fclose(file);
}

}  // namespace

int main() {
  check_kernels();
  check_team();
  check_stores();
  check_chase();
  check_clock();
  check_scatter();
  check_products();
  check_decoding();
  check_refused_cpu();
  check_storage();
  if (failures == 0) std::printf("ok %s\n", name_of(supported_isas().front()).data());
  return failures == 0 ? 0 : 1;
}
