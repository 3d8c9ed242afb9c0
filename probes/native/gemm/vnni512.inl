// What AVX-512 VNNI adds to lanes; included within their class.

// Activations are unsigned, weights signed: the offset comes off by the sum of each row's weights.
static constexpr int kOffset = 128;

K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
  // Not the intrinsic: with it GCC 12 keeps sums in memory, which halves the speed.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(activations), "v"(weights));
  return sum;
}

// Of weights that were raised by 128 instead, which the start of a sum takes off.
static constexpr int kStart = -128;

K3_LANES Sum dot_raised(Sum sum, Vector raised, Input activations) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(raised), "v"(activations));
  return sum;
}
