// What Python sees of reading files: k3gate.probes._storage.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <system_error>
#include <tuple>
#include <vector>

#include "direct_reader.hpp"
#include "files.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace k3gate::storage {
namespace {

using RangeTuple = std::tuple<int, std::uint64_t, std::uint64_t>;

void make_reader(Reader* self, const std::vector<std::vector<RangeTuple>>& lists, std::size_t block_bytes,
                 unsigned depth, std::vector<int> cpus, bool huge) {
  std::vector<std::vector<Range>> ranges;
  for (const auto& list : lists) {
    ranges.emplace_back();
    for (const auto& [file, start, bytes] : list) ranges.back().push_back({file, start, bytes});
  }
  new (self) Reader(std::move(ranges), block_bytes, depth, std::move(cpus), huge);
}

std::tuple<int, std::uint64_t, std::uint64_t> resident(int file, std::uint64_t start, std::uint64_t bytes) {
  std::uint64_t pages = 0;
  std::uint64_t found = 0;
  nb::gil_scoped_release released;
  const int error = count_resident(file, start, bytes, pages, found);
  return {error, pages, found};
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
}  // namespace k3gate::storage

NB_MODULE(_storage, m) {
  using namespace k3gate::storage;
  m.doc() = "Reading files as fast as their drives deliver them.";
  nb::register_exception_translator(translate_system_error);
  nb::class_<ReadReport>(m, "ReadReport",
                         "What a thread read in a region; `error` is an errno, 0 where all went well.")
      .def_ro("start", &ReadReport::start)
      .def_ro("end", &ReadReport::end)
      .def_ro("cpu_seconds", &ReadReport::cpu_seconds)
      .def_ro("bytes", &ReadReport::bytes)
      .def_ro("reads", &ReadReport::reads)
      .def_ro("cpu_before", &ReadReport::cpu_before)
      .def_ro("cpu_after", &ReadReport::cpu_after)
      .def_ro("error", &ReadReport::error)
      .def_ro("file", &ReadReport::file)
      .def_ro("at", &ReadReport::at);
  nb::class_<ReadRegion>(m, "ReadRegion",
                         "A timed region: wall seconds of the common window, and the threads.")
      .def_ro("seconds", &ReadRegion::seconds)
      .def_ro("threads", &ReadRegion::threads);
  nb::class_<Reader>(m, "Reader", "Threads that read ranges (file descriptor, start, bytes) of open files.")
      .def("__init__", &make_reader, "ranges"_a, "block_bytes"_a, "depth"_a, "cpus"_a = std::vector<int>(),
           "huge"_a = true)
      .def("run", &Reader::run, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Read for so many seconds; goes on where the last region ended.")
      .def("stop", &Reader::stop, "End the region under way, from another thread.");
  m.def("resident", &resident, "file"_a, "start"_a, "bytes"_a,
        "(errno, pages of the range, pages of it in memory), by mincore.");
  m.def("write_random", &write_random, "file"_a, "start"_a, "bytes"_a, "seed"_a,
        nb::call_guard<nb::gil_scoped_release>(), "Write incompressible bytes; 0 or an errno.");
}
