// A self-check of the native code without Python: run under sanitizers, and under qemu for aarch64.
// Exits 0 when all holds, else prints what does not.
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <vector>

#include "../../probes/native/isa.hpp"
#include "../../probes/native/kernels.hpp"
#include "../../probes/native/pool.hpp"
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

void check_kernels() {
  for (const Isa isa : supported_isas()) {
    const Kernel* kernel = find_kernel("read", name_of(isa));
    expect(kernel != nullptr, "each supported instruction set has a read kernel");
    if (kernel == nullptr) continue;
    for (std::size_t words : {0UL, 1UL, 7UL, 8UL, 63UL, 64UL, 65UL, 1000UL, 4099UL}) {
      for (std::size_t offset = 0; offset < 9; ++offset) {
        std::vector<std::uint64_t> data(words + offset);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < data.size(); ++i) {
          data[i] = i * i * 0x123456789abcdefULL + 5;
          if (i >= offset) sum += data[i];
        }
        expect(kernel->run(data.data() + offset, words) == sum, name_of(isa).data());
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

void check_refused_cpu() {
  bool refused = false;
  try {
    Team team({1 << 19});
  } catch (const std::system_error&) {
    refused = true;
  }
  expect(refused, "a CPU that does not exist is refused");
}

}  // namespace

int main() {
  check_kernels();
  check_team();
  check_refused_cpu();
  if (failures == 0) std::printf("ok %s\n", name_of(supported_isas().front()).data());
  return failures == 0 ? 0 : 1;
}
