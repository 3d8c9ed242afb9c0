#include "bindings.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "check.hpp"
#include "engine.hpp"
#include "proof.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace k3gate::decode {
namespace {

Pages pages_named(const std::string& name) {
  if (name == "small") return Pages::kSmall;
  if (name == "transparent") return Pages::kTransparent;
  if (name == "reserved_2m") return Pages::kReserved2MiB;
  if (name == "reserved_1g") return Pages::kReserved1GiB;
  throw std::invalid_argument("no such page kind: " + name);
}

Placement placement_named(const std::string& name) {
  if (name == "owner") return Placement::kOwner;
  if (name == "interleaved") return Placement::kInterleaved;
  if (name == "replicated") return Placement::kReplicated;
  if (name == "single") return Placement::kSingle;
  throw std::invalid_argument("no such placement: " + name);
}

gemm::Format trunk_named(const std::string& name) {
  for (const gemm::Variant& variant : gemm::variants()) {
    if (gemm::name_of(variant.format) == name && variant.format != gemm::Format::kInt8) return variant.format;
  }
  throw std::invalid_argument("no such trunk: " + name);
}

template <class T>
T taken(const nb::dict& from, const char* name) {
  return nb::cast<T>(from[name]);
}

Setup setup_of(const nb::dict& given) {
  const auto numbers = taken<nb::dict>(given, "numbers");
  const auto number = [&numbers](const char* name) {
    const auto value = nb::cast<std::int64_t>(numbers[name]);
    if (value < 0) throw std::invalid_argument(std::string(name) + " is below 0");
    return static_cast<std::size_t>(value);
  };
  Setup setup{};
  Shape& shape = setup.shape;
  shape.layers = number("layers");
  shape.experts = number("experts");
  shape.dense_layers = number("dense_layers");
  shape.hidden = number("hidden");
  shape.width = number("width");
  shape.inner = number("inner");
  shape.router_rows = number("router_rows");
  shape.used = number("used");
  shape.shared = number("shared");
  shape.heads = number("heads");
  shape.head_dim = number("head_dim");
  shape.query_rank = number("query_rank");
  shape.cache_rank = number("cache_rank");
  shape.rest = number("rest");
  shape.decay_rank = number("decay_rank");
  shape.convolution = number("convolution");
  shape.dense_inner = number("dense_inner");
  shape.block_layers = number("block_layers");
  shape.vocabulary = number("vocabulary");
  if (shape.layers > 1024) throw std::invalid_argument("layers are 1 to 1024");
  shape.mla.assign(shape.layers, false);
  for (const std::int64_t layer : taken<std::vector<std::int64_t>>(given, "mla_layers")) {
    if (layer < 0 || static_cast<std::size_t>(layer) >= shape.layers)
      throw std::invalid_argument("there is no layer " + std::to_string(layer));
    shape.mla[static_cast<std::size_t>(layer)] = true;
  }
  const auto trunk = taken<std::string>(given, "trunk");
  setup.trunk = trunk != "gpu";
  setup.format = setup.trunk ? trunk_named(trunk) : gemm::Format::kMxfp4;
  setup.path = taken<std::string>(given, "path");
  setup.placement = placement_named(taken<std::string>(given, "placement"));
  setup.pages = pages_named(taken<std::string>(given, "pages"));
  setup.bind = taken<bool>(given, "bind");
  setup.nodes = taken<std::vector<int>>(given, "nodes");
  setup.cpus = taken<std::vector<std::vector<int>>>(given, "cpus");
  setup.batch = number("batch");
  setup.positions = number("positions");
  setup.context = number("context");
  setup.room = number("room");
  setup.seed = number("seed");
  check(setup);
  return setup;
}

using Sizes = std::map<int, std::map<std::string, std::size_t>>;

// Interleaved pages count in even shares.
Sizes sizes_of(const Model& model) {
  const Memory& memory = model.memory();
  Sizes sizes;
  for (std::size_t n = 0; n < memory.nodes(); ++n) {
    for (std::size_t part = 0; part < kMemoryParts; ++part) {
      const std::size_t bytes =
          memory.by_part(n)[part] + memory.by_part(memory.interleaved())[part] / memory.nodes();
      if (bytes > 0) sizes[model.setup().nodes[n]][std::string(name_of(static_cast<Part>(part)))] += bytes;
    }
  }
  return sizes;
}

Sizes needed(const nb::dict& given) {
  Model model(setup_of(given));
  const Work work(model);
  return sizes_of(model);
}

nb::dict told(const Verdict& verdict) {
  nb::dict found;
  found["ok"] = verdict.ok;
  found["detail"] = verdict.detail;
  return found;
}

nb::dict prove_setup(const nb::dict& given, std::uint64_t seed, const std::string& fault) {
  const Setup setup = setup_of(given);
  Verdict verdict;
  {
    nb::gil_scoped_release released;
    verdict = prove(setup, seed, fault);
  }
  return told(verdict);
}

template <class T>
std::vector<T> numbers_of(const nb::bytes& bytes) {
  if (bytes.size() % sizeof(T) != 0) throw std::invalid_argument("bytes that are no whole numbers");
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.c_str(), bytes.size());
  return numbers;
}

template <class T>
nb::bytes bytes_of(const std::vector<T>& numbers) {
  return nb::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

std::vector<double> by_part(const double* values) { return {values, values + kParts}; }

nb::object share_of(std::uint64_t some, std::uint64_t all) {
  if (all == 0) return nb::none();
  return nb::float_(static_cast<double>(some) / static_cast<double>(all));
}

nb::dict told(const Result& result) {
  nb::dict found;
  found["seconds"] = result.region.seconds;
  found["step_seconds"] = result.step_seconds;
  found["critical"] = by_part(result.critical);
  found["thread_seconds"] = by_part(result.thread_seconds);
  found["read"] = by_part(result.counters.read);
  found["written"] = by_part(result.counters.written);
  found["flops"] = by_part(result.counters.flops);
  nb::dict crossed;
  crossed["activations"] = result.counters.activations;
  crossed["experts_in"] = result.counters.experts_in;
  crossed["experts_out"] = result.counters.experts_out;
  found["crossed"] = crossed;
  found["agreement"] = share_of(result.counters.agreed, result.counters.choices);
  found["near_ties"] = share_of(result.counters.tied, result.counters.routed);
  found["ids"] = bytes_of(result.ids);
  found["logits"] = bytes_of(result.logits);
  found["hidden"] = bytes_of(result.hidden);
  found["threads"] = result.region.threads;
  return found;
}

// An engine that can give its memory back.
class Held {
 public:
  Held(const Setup& setup, bool fill) : engine_(std::make_unique<Engine>(setup, fill)) {}
  Engine& get() const {
    if (engine_ == nullptr) throw std::invalid_argument("this engine is closed");
    return *engine_;
  }
  void close() { engine_.reset(); }

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace

void bind(nb::module_& m) {
  m.def("decode_bytes", &needed, "arguments"_a, "node -> part -> bytes of an engine; nothing is allocated.");

  m.def("decode_prove", &prove_setup, "arguments"_a, "seed"_a, "fault"_a,
        "A miniature of this setup with fresh weights against float64: ok, detail.");

  nb::class_<Held>(m, "DecodeEngine", "A miniature that decodes; see k3gate/probes/decode_kernels.py.")
      .def(
          "__init__",
          [](Held* self, const nb::dict& arguments, bool fill) {
            const Setup setup = setup_of(arguments);
            nb::gil_scoped_release released;
            new (self) Held(setup, fill);
          },
          "arguments"_a, "fill"_a)
      .def("tensors",
           [](const Held& self) {
             std::vector<std::tuple<std::string, std::string, std::size_t, std::size_t>> all;
             for (const TensorInfo& one : self.get().model().tensors())
               all.emplace_back(one.name, one.format, one.rows, one.depth);
             return all;
           })
      .def(
          "load",
          [](const Held& self, const std::string& name, const std::string& kind, const nb::bytes& data,
             const nb::bytes& scales) {
            self.get().model().load(name, kind, reinterpret_cast<const std::byte*>(data.c_str()), data.size(),
                                    reinterpret_cast<const std::byte*>(scales.c_str()), scales.size());
          },
          "name"_a, "kind"_a, "data"_a, "scales"_a)
      .def(
          "weights",
          [](const Held& self, const std::string& name) {
            return bytes_of(self.get().model().weights(name));
          },
          "name"_a)
      .def(
          "run",
          [](const Held& self, const nb::bytes& ids, std::size_t steps, const nb::bytes& tokens,
             const nb::bytes& rows) {
            const auto ids_ = numbers_of<std::int16_t>(ids);
            const auto tokens_ = numbers_of<std::int32_t>(tokens);
            const auto rows_ = numbers_of<float>(rows);
            Engine& engine = self.get();
            Result result;
            {
              nb::gil_scoped_release released;
              result = engine.run(ids_, steps, tokens_, rows_);
            }
            return told(result);
          },
          "ids"_a, "steps"_a, "tokens"_a, "rows"_a)
      .def(
          "prefill",
          [](const Held& self, const nb::bytes& ids, const nb::bytes& tokens) {
            const auto ids_ = numbers_of<std::int16_t>(ids);
            const auto tokens_ = numbers_of<std::int32_t>(tokens);
            Engine& engine = self.get();
            Result result;
            {
              nb::gil_scoped_release released;
              result = engine.prefill(ids_, tokens_);
            }
            return told(result);
          },
          "ids"_a, "tokens"_a)
      .def("reset", [](const Held& self) { self.get().reset(); })
      .def(
          "recheck",
          [](const Held& self, std::uint64_t seed, std::size_t sampled) {
            const Engine& engine = self.get();
            Verdict verdict;
            {
              nb::gil_scoped_release released;
              verdict = judge(check_step(engine, engine.model(), sampled, seed));
            }
            return told(verdict);
          },
          "seed"_a, "sampled"_a)
      .def("allocated", [](const Held& self) { return sizes_of(self.get().model()); })
      .def("pools",
           [](nb::handle_t<Held> self) {
             const Model& model = nb::cast<Held&>(self).get().model();
             nb::list pools;
             for (std::size_t i = 0; i <= model.memory().nodes(); ++i) {
               if (Pool* const pool = model.memory().pool(i))
                 pools.append(nb::make_tuple(i < model.memory().nodes() ? model.setup().nodes[i] : -1,
                                             nb::cast(pool, nb::rv_policy::reference_internal, self)));
             }
             return pools;
           })
      .def("bind_errors",
           [](const Held& self) {
             const Model& model = self.get().model();
             std::map<int, int> errors;
             for (std::size_t i = 0; i <= model.memory().nodes(); ++i) {
               if (model.memory().pool(i) != nullptr)
                 errors[i < model.memory().nodes() ? model.setup().nodes[i] : -1] =
                     model.memory().bind_error(i);
             }
             return errors;
           })
      .def("affinities", [](const Held& self) { return self.get().team().affinities(); })
      .def("variants",
           [](const Held& self) {
             const Engine& engine = self.get();
             std::vector<std::tuple<std::string, std::string, std::string>> all;
             std::vector<gemm::Format> formats = {gemm::Format::kMxfp4};
             if (engine.model().setup().trunk) {
               formats.push_back(gemm::Format::kBf16);
               formats.push_back(engine.model().setup().format);
             }
             for (const gemm::Format format : formats) {
               const gemm::Variant& one = engine.variant(format, engine.model().setup().batch);
               all.emplace_back(gemm::name_of(format), gemm::name_of(one.path),
                                gemm::name_of(one.activations));
             }
             return all;
           })
      .def("close", [](Held& self) { self.close(); });
}

}  // namespace k3gate::decode
