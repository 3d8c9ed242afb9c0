// SiTU as a plain loop, for compilers to turn into vectors; included with K3_TARGET set.

// e^x for x at most 0, by 2^n x a polynomial (Cephes expf); x below -87 counts as -87.
K3_TARGET inline __attribute__((always_inline)) float exponential(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  const float n = __builtin_nearbyintf(clamped * 1.44269504F);
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

// For small x by its series, as 1 - e^-2x would cancel.
K3_TARGET inline __attribute__((always_inline)) float hyperbolic_tangent(float x) {
  const float size = x < 0 ? -x : x;
  const float e = exponential(-2.0F * size);
  const float large = (1.0F - e) / (1.0F + e);
  const float s = size * size;
  // Cephes tanhf, below 0.625.
  float p = -5.70498872745e-3F;
  p = p * s + 2.06390887954e-2F;
  p = p * s - 5.37397155531e-2F;
  p = p * s + 1.33314422036e-1F;
  p = p * s - 3.33332819422e-1F;
  const float small = p * s * size + size;
  const float value = size < 0.625F ? small : large;
  return x < 0 ? -value : value;
}

K3_TARGET inline __attribute__((always_inline)) float sigmoid(float x) {
  const float e = exponential(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0F) / (1.0F + e);
}

[[maybe_unused]] K3_TARGET void situ_loop(const float* __restrict gate, const float* __restrict up,
                                          std::size_t count, std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) {
    const float a = gate[i];
    const float b = up[i];
    const float value =
        4.0F * hyperbolic_tangent(a * 0.25F) * sigmoid(a) * (25.0F * hyperbolic_tangent(b * 0.04F));
    const auto bits = std::bit_cast<std::uint32_t>(value);
    to[i] = static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
    if (value != value) to[i] = 0x7fc0U;
  }
}
