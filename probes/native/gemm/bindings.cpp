#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "gemm.hpp"
#include "peaks.hpp"
#include "proof.hpp"
#include "reference.hpp"
#include "situ.hpp"
#include "tile_help.hpp"
#include "trial.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace k3gate::gemm {
namespace {

std::string text(std::string_view view) { return std::string(view); }

// Rather than SIGILL, or a fault at the first tile instruction.
void require_available(Path path) {
  const Availability found = availability(path);
  if (found.presence == Presence::kOk) return;
  throw std::invalid_argument(text(name_of(path)) + " is " + text(name_of(found.presence)) + " on this CPU");
}

const Variant& variant_named(const std::string& format, const std::string& path) {
  const Variant* variant = find_variant(format, path);
  if (variant == nullptr) throw std::invalid_argument("no variant " + format + " " + path + " in this build");
  return *variant;
}

const Variant& runnable_variant(const std::string& format, const std::string& path) {
  const Variant& variant = variant_named(format, path);
  require_available(variant.path);
  return variant;
}

Pages pages_named(const std::string& name) {
  if (name == "small") return Pages::kSmall;
  if (name == "transparent") return Pages::kTransparent;
  if (name == "reserved_2m") return Pages::kReserved2MiB;
  if (name == "reserved_1g") return Pages::kReserved1GiB;
  throw std::invalid_argument("no such page kind: " + name);
}

Format format_named(const std::string& name) {
  for (const Format format : formats()) {
    if (name_of(format) == name) return format;
  }
  throw std::invalid_argument("no such format: " + name);
}

Activations activations_named(const std::string& name) {
  for (const Activations kind : {Activations::kBf16, Activations::kInt8, Activations::kInt8Groups}) {
    if (name_of(kind) == name) return kind;
  }
  throw std::invalid_argument("activations are bf16, int8 or int8_groups");
}

const std::byte* bytes_of(const nb::bytes& bytes, std::size_t wanted, const char* what) {
  if (bytes.size() != wanted)
    throw std::invalid_argument(std::string(what) + " take " + std::to_string(wanted) + " bytes, not " +
                                std::to_string(bytes.size()));
  return reinterpret_cast<const std::byte*>(bytes.c_str());
}

struct Operands {
  Source source;
  std::vector<std::uint16_t> activations;
};

Operands operands_of(Format format, const nb::bytes& values, const nb::bytes& scales,
                     const nb::bytes& activations, std::size_t tokens, std::size_t rows, std::size_t depth) {
  constexpr std::size_t kMost = std::size_t{1} << 24;
  if (tokens == 0 || tokens > kMostTokens || rows == 0 || rows > kMost || depth == 0 || depth > kMost ||
      depth % kGroup != 0)
    throw std::invalid_argument("tokens are 1 to 512, rows at least 1, the depth a multiple of 32");
  Operands found{{format, rows, depth, bytes_of(values, value_bytes(format, rows, depth), "these weights"),
                  bytes_of(scales, scale_bytes(format, rows, depth), "these scales")},
                 std::vector<std::uint16_t>(tokens * depth)};
  std::memcpy(found.activations.data(), bytes_of(activations, tokens * depth * 2, "these activations"),
              tokens * depth * 2);
  return found;
}

nb::bytes multiply(const std::string& format, const std::string& path, const nb::bytes& values,
                   const nb::bytes& scales, const nb::bytes& activations, std::size_t tokens,
                   std::size_t rows, std::size_t depth, bool modelled) {
  const Variant& variant = modelled ? variant_named(format, path) : runnable_variant(format, path);
  if (modelled && variant.path != Path::kAmxInt8 && variant.path != Path::kAmxBf16)
    throw std::invalid_argument("only tiles have a model");
  const Operands operands = operands_of(variant.format, values, scales, activations, tokens, rows, depth);
  std::vector<float> output(tokens * rows, std::numeric_limits<float>::quiet_NaN());
  {
    nb::gil_scoped_release released;
    std::vector<std::size_t> tiles;
    const std::vector<std::byte> packed = pack(operands.source, tiles);
    const Buffer memory(packed.size());
    std::memcpy(memory.data(), packed.data(), packed.size());
    const Packed view{variant.format, rows, depth, memory.data(), &tiles};
    Workspace workspace;
    workspace.reserve(tokens, depth);
    const Call call{&view, operands.activations.data(), output.data(), tokens, &workspace};
    modelled ? run_modelled(call, variant.path) : variant.run(call);
  }
  return nb::bytes(reinterpret_cast<const char*>(output.data()), output.size() * sizeof(float));
}

nb::bytes expect(const std::string& format, const std::string& kind, const nb::bytes& values,
                 const nb::bytes& scales, const nb::bytes& activations, std::size_t tokens, std::size_t rows,
                 std::size_t depth) {
  const Operands operands =
      operands_of(format_named(format), values, scales, activations, tokens, rows, depth);
  std::vector<Expected> all;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::vector<Expected> some = expect_row(
        source_row(operands.source, row), operands.activations.data(), tokens, activations_named(kind));
    all.insert(all.end(), some.begin(), some.end());
  }
  static_assert(sizeof(Expected) == 6 * sizeof(double));
  return nb::bytes(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(Expected));
}

std::size_t packed_size(const std::string& format, const nb::bytes& values, const nb::bytes& scales,
                        std::size_t rows, std::size_t depth) {
  const std::string none(2 * depth, '\0');
  const Operands operands =
      operands_of(format_named(format), values, scales, nb::bytes(none.data(), none.size()), 1, rows, depth);
  std::vector<std::size_t> tiles;
  return pack(operands.source, tiles).size();
}

nb::bytes situ_of(const nb::bytes& gate_up, std::size_t tokens, std::size_t width) {
  if (tokens == 0 || tokens > kMostTokens || width == 0 || width > std::size_t{1} << 24)
    throw std::invalid_argument("tokens are 1 to 512, the width at least 1");
  std::vector<float> from(tokens * 2 * width);
  std::memcpy(from.data(), bytes_of(gate_up, from.size() * sizeof(float), "gates and ups"),
              from.size() * sizeof(float));
  std::vector<std::uint16_t> to(tokens * width);
  situ(from.data(), tokens, width, to.data());
  return nb::bytes(reinterpret_cast<const char*>(to.data()), to.size() * 2);
}

nb::dict availability_row(Path path, const Availability& found) {
  nb::dict row;
  row["path"] = text(name_of(path));
  row["presence"] = text(name_of(found.presence));
  row["error"] = found.error;
  row["base"] = text(k3gate::name_of(base_of(path)));
  return row;
}

nb::list path_table() {
  nb::list table;
  for (const Path path : paths()) table.append(availability_row(path, availability(path)));
  return table;
}

// What another CPU and kernel would give: for tests of the choice.
nb::list paths_of(const std::vector<std::string>& names, int error) {
  static thread_local int answer = 0;
  answer = error;
  CpuFlags flags;
  const auto has = [&names](const char* name) {
    for (const std::string& each : names) {
      if (each == name) return true;
    }
    return false;
  };
  flags.avx2 = has("avx2");
  flags.avx_vnni = has("avx_vnni");
  flags.avx512 = has("avx512");
  flags.avx512_vnni = has("avx512_vnni");
  flags.avx512_bf16 = has("avx512_bf16");
  flags.amx_tile = has("amx_tile");
  flags.amx_int8 = has("amx_int8");
  flags.amx_bf16 = has("amx_bf16");
  nb::list table;
  for (const Path path : paths())
    table.append(availability_row(path, availability(path, flags, [] { return answer; })));
  return table;
}

nb::list variant_table() {
  nb::list table;
  for (const Variant& variant : variants()) {
    nb::dict row;
    row["format"] = text(name_of(variant.format));
    row["path"] = text(name_of(variant.path));
    row["activations"] = text(name_of(variant.activations));
    table.append(row);
  }
  return table;
}

nb::list peak_table() {
  nb::list table;
  for (const Peak& peak : peaks()) {
    nb::dict row;
    row["path"] = text(name_of(peak.path));
    row["type"] = text(peak.type);
    row["flops_per_turn"] = peak.flops_per_turn;
    row["flops_per_instruction"] = peak.flops_per_instruction;
    table.append(row);
  }
  return table;
}

Region run_peak(Team& team, const std::string& path, const std::string& type, std::uint64_t turns) {
  const Peak* peak = find_peak(path, type);
  if (peak == nullptr) throw std::invalid_argument("no peak " + path + " " + type + " in this build");
  require_available(peak->path);
  if (turns == 0 || turns > 1'000'000'000'000)
    throw std::invalid_argument("turns are at least 1 and bounded");
  nb::gil_scoped_release released;
  return team.execute([peak, turns](std::size_t, ThreadReport& report) {
    peak->run(turns);
    report.value = turns;
  });
}

Comparison prove_named(const std::string& format, const std::string& path, std::size_t tokens,
                       std::size_t rows, std::size_t depth, int spread, std::uint64_t seed,
                       const std::string& fault) {
  const Variant& variant = runnable_variant(format, path);
  nb::gil_scoped_release released;
  return prove(variant, tokens, rows, depth, spread, seed, fault_named(fault));
}

Comparison prove_expert_named(const std::string& format, const std::string& path, std::size_t tokens,
                              std::size_t width, std::size_t inner, std::uint64_t seed,
                              const std::string& fault) {
  const Variant& variant = runnable_variant(format, path);
  nb::gil_scoped_release released;
  return prove_expert(variant, tokens, width, inner, seed, fault_named(fault));
}

}  // namespace

void bind(nb::module_& m) {
  m.def("gemm_paths", &path_table,
        "Each path of products, best first: path, presence (ok, not_present, not_permitted), error (errno of "
        "the request "
        "for tiles), base (the instruction set of its loads).");
  m.def("gemm_paths_of", &paths_of, "flags"_a, "error"_a,
        "The same for a CPU of such flags; `error`: of the request.");
  m.def("gemm_variants", &variant_table, "Each variant of this build: format, path, activations.");
  m.def("gemm_multiply", &multiply, "format"_a, "path"_a, "values"_a, "scales"_a, "activations"_a, "tokens"_a,
        "rows"_a, "depth"_a, "modelled"_a = false,
        "float32 [tokens, rows] of weights as a checkpoint stores them and BF16 activations; `modelled`: on "
        "the model of "
        "the tiles.");
  m.def("gemm_expect", &expect, "format"_a, "activations_kind"_a, "values"_a, "scales"_a, "activations"_a,
        "tokens"_a, "rows"_a, "depth"_a,
        "float64 [rows, tokens, 4]: value, bound, unrounded value, bound of the rounding.");
  m.def("gemm_packed_bytes", &packed_size, "format"_a, "values"_a, "scales"_a, "rows"_a, "depth"_a,
        "Bytes that these weights take as kernels read them.");
  m.def("gemm_situ", &situ_of, "gate_up"_a, "tokens"_a, "width"_a,
        "BF16 [tokens, width] of float32 [tokens, 2 x width], the gates of a token before its ups.");
  m.def("gemm_prove", &prove_named, "format"_a, "path"_a, "tokens"_a, "rows"_a, "depth"_a, "spread"_a,
        "seed"_a, "fault"_a = "",
        "A product of fresh random operands against float64; `fault`: scale, nibbles, row.");
  m.def("gemm_prove_expert", &prove_expert_named, "format"_a, "path"_a, "tokens"_a, "width"_a, "inner"_a,
        "seed"_a, "fault"_a = "", "The same of a whole expert, width -> inner x 2 -> width.");
  m.def("gemm_peaks", &peak_table, "Each loop of peaks: path, type, flops_per_turn, flops_per_instruction.");
  m.def("gemm_peak", &run_peak, "team"_a, "path"_a, "type"_a, "turns"_a,
        "Runs a loop of peaks on each thread.");

  nb::class_<Comparison>(m, "GemmComparison", "Outputs against the reference.")
      .def_ro("checked", &Comparison::checked)
      .def_ro("wrong", &Comparison::wrong)
      .def_ro("unwritten", &Comparison::unwritten)
      .def_ro("worst", &Comparison::worst, "The largest error in units of its bound.")
      .def_ro("error", &Comparison::error, "Root mean square against the unrounded product, relative to it.")
      .def_ro("drift", &Comparison::drift,
              "Root mean square of the errors in units of what rounding explains.")
      .def_ro("first_row", &Comparison::first_row)
      .def_ro("first_token", &Comparison::first_token)
      .def_prop_ro("ok", &Comparison::ok);

  m.def(
      "gemm_run_together",
      [](Team& team, const std::vector<Trial*>& trials, std::size_t tokens, std::uint64_t calls) {
        for (const Trial* const trial : trials) {
          if (trial == nullptr) throw std::invalid_argument("there is one trial for each thread of the team");
        }
        nb::gil_scoped_release released;
        return Trial::run_together(team, trials, tokens, calls);
      },
      "team"_a, "trials"_a, "tokens"_a, "calls"_a,
      "As GemmTrial.run, with a trial for each thread of the team: they may repeat.");

  nb::class_<Trial>(m, "GemmTrial", "Timed products over weights that rotate through a pool.")
      .def(
          "__init__",
          [](Trial* self, const std::string& format, const std::string& path, bool expert, std::size_t rows,
             std::size_t depth, std::size_t pool_bytes, const std::string& pages, std::uint64_t seed,
             int node) {
            const Variant& variant = runnable_variant(format, path);
            const Pages kind = pages_named(pages);
            nb::gil_scoped_release released;
            new (self) Trial(variant, expert, rows, depth, pool_bytes, kind, node, seed);
          },
          "format"_a, "path"_a, "expert"_a, "rows"_a, "depth"_a, "pool_bytes"_a, "pages"_a, "seed"_a,
          "node"_a = -1,
          "Fills a pool on a node (-1: on any) with matrices [rows, depth], or with experts (depth -> rows x "
          "2 "
          "-> depth). Raises OSError.")
      .def_prop_ro("items", &Trial::items)
      .def_prop_ro("pool", &Trial::pool, nb::rv_policy::reference_internal)
      .def_prop_ro("bind_error", &Trial::bind_error, "errno of binding the pool to its node, or 0.")
      .def_prop_ro("columns", &Trial::columns, "Of an output.")
      .def_prop_ro("bytes_per_item", &Trial::bytes_per_item, "Of the weights, as the format has them.")
      .def_prop_ro("packed_bytes", &Trial::packed_bytes, "Of an item, as it lies in the pool.")
      .def("flops_per_item", &Trial::flops_per_item, "tokens"_a)
      .def("run", &Trial::run, "team"_a, "tokens"_a, "calls"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Each thread multiplies the next `calls` items of the pool.")
      .def("check", &Trial::check, "sampled"_a, "seed"_a, nb::call_guard<nb::gil_scoped_release>(),
           "What the last run left, of random rows recomputed from the weights that it read.")
      .def(
          "output_address",
          [](const Trial& self, std::size_t thread) {
            return reinterpret_cast<std::uintptr_t>(self.output(thread));
          },
          "thread"_a, "Where the last output of a thread lies: float32 [tokens, columns].");
}

}  // namespace k3gate::gemm
