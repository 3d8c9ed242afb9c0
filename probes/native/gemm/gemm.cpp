#include "gemm.hpp"

#include <vector>

namespace k3gate::gemm {

std::string_view name_of(Activations activations) {
  switch (activations) {
    case Activations::kInt8:
      return "int8";
    case Activations::kInt8Groups:
      return "int8_groups";
    case Activations::kBf16:
      break;
  }
  return "bf16";
}

std::span<const Variant> variants() {
  static const std::vector<Variant> all = [] {
    std::vector<Variant> found;
    for (const auto family : {family::amx(), family::avx512_vnni(), family::avx512_bf16(), family::avx512(),
                              family::avx_vnni(), family::avx2(), family::generic()})
      found.insert(found.end(), family.begin(), family.end());
    return found;
  }();
  return all;
}

const Variant* find_variant(std::string_view format, std::string_view path) {
  for (const Variant& variant : variants()) {
    if (name_of(variant.format) == format && name_of(variant.path) == path) return &variant;
  }
  return nullptr;
}

}  // namespace k3gate::gemm
