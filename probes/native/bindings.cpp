// What Python sees of the kernels, the pools and the thread team: k3gate.probes._native.
#include "decode/bindings.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "chase.hpp"
#include "gemm/bindings.hpp"
#include "isa.hpp"
#include "kernels.hpp"
#include "network/bindings.hpp"
#include "pool.hpp"
#include "team.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace k3gate {
namespace {

constexpr std::uint64_t kLongestDelay = 100'000'000;

std::string text(std::string_view view) { return std::string(view); }

Pages pages_named(const std::string& name) {
  if (name == "small") return Pages::kSmall;
  if (name == "transparent") return Pages::kTransparent;
  if (name == "reserved_2m") return Pages::kReserved2MiB;
  if (name == "reserved_1g") return Pages::kReserved1GiB;
  throw std::invalid_argument("no such page kind: " + name);
}

const Kernel& runnable_kernel(const std::string& name, const std::string& isa) {
  const Kernel* kernel = find_kernel(name, isa);
  if (kernel == nullptr) throw std::invalid_argument("no kernel " + name + " for " + isa + " in this build");
  for (const Isa supported : supported_isas()) {
    if (supported == kernel->isa) return *kernel;
  }
  throw std::invalid_argument("this CPU lacks " + isa);  // rather than SIGILL
}

nb::list kernel_table() {
  nb::list table;
  for (const Kernel& kernel : kernels()) {
    nb::dict row;
    row["name"] = text(kernel.name);
    row["isa"] = text(name_of(kernel.isa));
    row["counted_bytes_per_word"] = kernel.traffic.counted_bytes;
    row["bus_bytes_per_word"] = kernel.traffic.bus_bytes;
    row["flops_per_word"] = kernel.traffic.flops;
    row["stores"] = text(kernel.traffic.stores);
    row["counting"] = text(kernel.traffic.counting);
    table.append(row);
  }
  return table;
}

// (pool, offset, bytes, seed) per part; the lists stay alive in Python while the team works.
using PartTuple = std::tuple<Pool*, std::size_t, std::size_t, std::uint64_t>;
using PartLists = std::vector<std::vector<PartTuple>>;

Part part_of(const PartTuple& tuple) {
  const auto& [pool, offset, bytes, seed] = tuple;
  if (pool == nullptr) throw std::invalid_argument("a part needs a pool");
  return Part{pool, offset, bytes, seed};
}

std::vector<std::vector<Part>> parts_of(const PartLists& lists) {
  std::vector<std::vector<Part>> parts(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (const PartTuple& tuple : lists[i]) parts[i].push_back(part_of(tuple));
  }
  return parts;
}

Region team_touch(Team& team, const PartLists& lists) {
  const auto parts = parts_of(lists);
  nb::gil_scoped_release released;
  return team.touch(parts);
}

Region team_verify(Team& team, const PartLists& lists) {
  const auto parts = parts_of(lists);
  nb::gil_scoped_release released;
  return team.verify(parts);
}

// What a kernel stores is the same for every instruction set, so the first one stands for all.
const Kernel& any_kernel(const std::string& name) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.name == name) return kernel;
  }
  throw std::invalid_argument("no kernel " + name + " in this build");
}

Region team_prepare(Team& team, const std::string& name, const PartLists& lists) {
  const Kernel& kernel = any_kernel(name);
  const auto parts = parts_of(lists);
  nb::gil_scoped_release released;
  return team.prepare(kernel, parts);
}

Region team_count_unwritten(Team& team, const std::string& name, const PartLists& lists) {
  const Kernel& kernel = any_kernel(name);
  if (!kernel.stores()) throw std::invalid_argument("this kernel stores nothing");
  const auto parts = parts_of(lists);
  nb::gil_scoped_release released;
  return team.count_unwritten(kernel, parts);
}

Region team_run(Team& team, const std::string& name, const std::string& isa, const PartLists& lists,
                std::uint64_t passes) {
  const Kernel& kernel = runnable_kernel(name, isa);
  const auto parts = parts_of(lists);
  nb::gil_scoped_release released;
  return team.run(kernel, parts, passes);
}

Region team_build_cycle(Team& team, std::size_t thread, const PartTuple& tuple, std::size_t window_bytes) {
  const Part part = part_of(tuple);
  nb::gil_scoped_release released;
  return team.build_cycle(thread, part, window_bytes);
}

Chase team_chase(Team& team, std::size_t thread, const PartTuple& tuple, std::uint64_t steps,
                 std::size_t start) {
  const Part part = part_of(tuple);
  nb::gil_scoped_release released;
  return team.chase(thread, part, steps, start);
}

Chase team_chase_loaded(Team& team, std::size_t thread, const PartTuple& tuple, std::uint64_t steps,
                        std::size_t start, const std::string& name, const std::string& isa,
                        const PartLists& loads, std::uint64_t delay, std::size_t block_bytes) {
  const Part part = part_of(tuple);
  const auto parts = parts_of(loads);
  // Loaders look for the end only between blocks.
  if (delay > kLongestDelay) throw std::invalid_argument("the delay is too long");
  const Load load{&runnable_kernel(name, isa), &parts, delay, block_bytes};
  nb::gil_scoped_release released;
  return team.chase_loaded(thread, part, steps, start, load);
}

std::pair<int, std::vector<int>> query_nodes(const Pool& pool, std::size_t samples) {
  std::vector<int> nodes;
  const int error = pool.query_nodes(samples, nodes);
  return {error, error == 0 ? nodes : std::vector<int>{}};
}

Chase team_scatter(Team& team, std::size_t thread, const PartTuple& tuple, std::uint64_t steps,
                   std::uint64_t state) {
  const Part part = part_of(tuple);
  nb::gil_scoped_release released;
  return team.scatter(thread, part, steps, state);
}

std::pair<int, std::size_t> count_resident(const Pool& pool) {
  std::size_t bytes = 0;
  const int error = pool.count_resident(bytes);
  return {error, bytes};
}

// Reads a kernel's checksum of words that Python holds: for tests against numpy and for foreign buffers.
std::uint64_t checksum_at(const std::string& kernel, const std::string& isa, std::uintptr_t address,
                          std::size_t words) {
  if (address % 8 != 0) throw std::invalid_argument("the address is not that of an 8-byte word");
  const Kernel& found = runnable_kernel(kernel, isa);
  if (found.stores()) throw std::invalid_argument("this kernel writes");
  nb::gil_scoped_release released;
  return found.run(Arrays{.to = reinterpret_cast<std::uint64_t*>(address), .words = words});
}

void translate_system_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::system_error& error) {
    const nb::object value =
        nb::steal(PyObject_CallFunction(PyExc_OSError, "is", error.code().value(), error.what()));
    if (value.is_valid()) PyErr_SetObject(PyExc_OSError, value.ptr());
  }
}

}  // namespace
}  // namespace k3gate

NB_MODULE(_native, m) {
  using namespace k3gate;
  m.doc() = "Native kernels, memory pools and the pinned thread team of k3gate.";
  nb::register_exception_translator(translate_system_error);
  m.attr("PATTERN_STEP") = kPatternStep;
  m.attr("CHASE_BLOCK") = kChaseBlock;

  m.def(
      "supported_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa isa : supported_isas()) names.push_back(text(name_of(isa)));
        return names;
      },
      "Instruction sets that kernels may use here, best first: avx512, avx2, neon, generic.");
  m.def("kernels", &kernel_table, "Every kernel in this build with its traffic model per 8-byte word.");
  m.def("allowed_cpus", &allowed_cpus, "CPU ids that this thread may run on, however wide the mask.");
  m.def("file_is_dax", &file_is_dax, "file"_a,
        "Whether an open file's pages are those of its device; None where the kernel does not say.");
  m.def("checksum_at", &checksum_at, "kernel"_a, "isa"_a, "address"_a, "words"_a,
        "The checksum of a load-only kernel over words at an address that the caller keeps alive.");

  nb::class_<Pool>(m, "Pool",
                   "Memory of a page kind (small, transparent, reserved_2m, reserved_1g), or a file's.")
      .def(
          "__init__",
          [](Pool* self, std::size_t bytes, const std::string& pages) {
            new (self) Pool(bytes, pages_named(pages));
          },
          "bytes"_a, "pages"_a, "Raises OSError where the kernel gives no memory.")
      .def_static(
          "of_file",
          [](int file, std::size_t bytes, std::size_t page_bytes, bool writable) {
            return std::make_shared<Pool>(file, bytes, page_bytes, writable);
          },
          "file"_a, "bytes"_a, "page_bytes"_a, "writable"_a = false,
          "Maps the first bytes of an open file, whole pages of its file system. Raises OSError.")
      .def("count_resident", &count_resident, "(errno of mincore, bytes that are in memory).")
      .def("bind", &Pool::bind, "node"_a, "Strictly to one node, before it is touched; returns 0 or errno.")
      .def("query_nodes", &query_nodes, "samples"_a,
           "(errno of move_pages, node id or negative errno of each sampled page).")
      .def("close", &Pool::close, "Unmaps now; also done when the object goes.")
      .def_prop_ro("address", &Pool::address)
      .def_prop_ro("bytes", &Pool::bytes)
      .def_prop_ro("advice_error", &Pool::advice_error, "0, or errno of the madvise for the page kind.");

  nb::class_<ThreadReport>(m, "ThreadReport",
                           "One thread's part of a timed region; seconds of CLOCK_MONOTONIC.")
      .def_ro("start", &ThreadReport::start)
      .def_ro("end", &ThreadReport::end)
      .def_ro("bytes", &ThreadReport::bytes)
      .def_ro("value", &ThreadReport::value)
      .def_ro("cpu_before", &ThreadReport::cpu_before)
      .def_ro("cpu_after", &ThreadReport::cpu_after)
      .def_ro("error", &ThreadReport::error);
  nb::class_<Region>(m, "Region", "A timed region: wall seconds of the common window, and the threads.")
      .def_ro("seconds", &Region::seconds)
      .def_ro("threads", &Region::threads);

  nb::class_<Chase>(m, "Chase", "A walk along a cycle of pointers, and what the loaders did meanwhile.")
      .def_ro("seconds", &Chase::seconds)
      .def_ro("steps", &Chase::steps)
      .def_ro("blocks", &Chase::blocks)
      .def_ro("end", &Chase::end)
      .def_ro("load_seconds", &Chase::load_seconds)
      .def_ro("load_bytes", &Chase::load_bytes)
      .def_ro("threads", &Chase::threads);

  nb::class_<Team>(m, "Team",
                   "Threads pinned one to a CPU. Parts are (pool, offset, bytes, seed), a list per thread.")
      .def(nb::init<std::vector<int>>(), "cpus"_a,
           "Raises OSError naming the CPU that could not be pinned to.")
      .def_prop_ro("cpus", &Team::cpus)
      .def("affinities", &Team::affinities, "CPU ids that each thread may run on, as the kernel says.")
      .def("touch", &team_touch, "parts"_a, "Faults the parts in and writes the pattern.")
      .def("verify", &team_verify, "parts"_a, "Counts the words that differ from the pattern.")
      .def("prepare", &team_prepare, "kernel"_a, "parts"_a,
           "Fills the parts for a kernel: the pattern; for the triad, numbers in its sources.")
      .def("count_unwritten", &team_count_unwritten, "kernel"_a, "parts"_a,
           "Counts the words that are not what a kernel that stores leaves there.")
      .def("run", &team_run, "kernel"_a, "isa"_a, "parts"_a, "passes"_a,
           "Runs a kernel over all parts, `passes` times. A kernel that stores overwrites the pattern.")
      .def("build_cycle", &team_build_cycle, "thread"_a, "part"_a, "window_bytes"_a = 0,
           "Links a part into one random cycle of blocks, by the part's seed; 0: one window over all of it.")
      .def("clocks", &Team::clocks, nb::call_guard<nb::gil_scoped_release>(),
           "Hertz that each thread's core achieves right after the work before; 0 where it is not known.")
      .def("chase", &team_chase, "thread"_a, "part"_a, "steps"_a, "start"_a = 0,
           "One thread follows the cycle of this part, from `start` bytes into it.")
      .def("chase_loaded", &team_chase_loaded, "thread"_a, "part"_a, "steps"_a, "start"_a, "kernel"_a,
           "isa"_a, "loads"_a, "delay"_a, "block_bytes"_a = 4096,
           "The same, while the other threads walk their parts, with `delay` turns of an empty loop after "
           "each block.")
      .def(
          "scatter", &team_scatter, "thread"_a, "part"_a, "steps"_a, "state"_a = 0,
          "One thread loads blocks of any content in an order of the part's seed, each load after the last.");

  gemm::bind(m);
  decode::bind(m);
  network::bind(m);
}
