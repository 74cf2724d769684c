// Scales of groups: read, made, and what they do to values. What is right is in
// reference/scales.py.
#pragma once

#include "numbers.h"

namespace transload {

// The order of formats.SCALE_BYTES.
enum class ScaleKind { kNone, kTensor, kF32, kUe8m0, kF32Zero4 };

struct Scale {
  float factor;
  float zero;
};

// 2 ** (code - 127), whose least is subnormal; NaN for 255.
inline float power(uint32_t code) {
  if (code == 0) return from_bits(1u << 22);
  return from_bits(code == 255 ? kNanBits : code << 23);
}

inline Scale read_scale(ScaleKind kind, const uint8_t* src) {
  if (kind == ScaleKind::kUe8m0) return {power(*src), 0.0f};
  uint32_t bits;
  std::memcpy(&bits, src, 4);
  if (kind == ScaleKind::kF32) return {from_bits(bits), 0.0f};
  return {from_bits(bits & ~15u), static_cast<float>(bits & 15u)};
}

inline void write_scale(ScaleKind kind, const Scale& scale, uint8_t* dst) {
  uint32_t bits = bits_of(scale.factor);
  if (kind == ScaleKind::kUe8m0) {
    *dst = static_cast<uint8_t>((bits >> 23) & 255u);
    return;
  }
  if (kind == ScaleKind::kF32Zero4) bits |= static_cast<uint32_t>(scale.zero);
  std::memcpy(dst, &bits, 4);
}

// NaN counts as 0, an infinity as the largest finite number.
inline uint32_t known_bits(float value) {
  const uint32_t bits = bits_of(value), size = bits & 0x7fffffffu;
  const uint32_t known = size == kInfinityBits ? kLargestBits : size;
  return size > kInfinityBits ? 0 : (bits & 0x80000000u) | known;
}

inline float peak_of(const float* values, int64_t n) {
  int32_t peak = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto size = static_cast<int32_t>(known_bits(values[i]) & 0x7fffffffu);
    peak = size > peak ? size : peak;
  }
  return from_bits(static_cast<uint32_t>(peak));
}

// Integers in the order of the floats whose bits they were, and back: its own inverse.
inline int32_t in_order(uint32_t bits) {
  const auto order = static_cast<int32_t>(bits);
  return order ^ ((order >> 31) & 0x7fffffff);
}

// The least power of two under which a peak fits, without ever rounding: exponents subtracted, one
// more where the peak's mantissa is above the largest's. A subnormal peak is 2^-126 at most, which
// fits under the least power of all.
inline Scale least_power(float peak, float largest) {
  if (peak == 0.0f) return {1.0f, 0.0f};
  const uint32_t bits = bits_of(peak), most = bits_of(largest);
  const auto exponents = static_cast<int32_t>(bits >> 23) - static_cast<int32_t>(most >> 23);
  const int32_t code = 127 + exponents + ((bits & 0x7fffffu) > (most & 0x7fffffu) ? 1 : 0);
  return {power(static_cast<uint32_t>(std::max(code, 0))), 0.0f};
}

inline Scale with_zero_point(const float* values, int64_t n) {
  int32_t least = 0, most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t order = in_order(known_bits(values[i]));
    least = order < least ? order : least;
    most = order > most ? order : most;
  }
  const float low = from_bits(static_cast<uint32_t>(in_order(static_cast<uint32_t>(least))));
  const float high = from_bits(static_cast<uint32_t>(most));
  const float cleared = from_bits(bits_of(high / 15.0f - low / 15.0f) & ~15u);
  const float factor = cleared == 0.0f ? 1.0f : cleared;
  return {factor, static_cast<float>(encode_int(-low / factor, 0.0f, 15.0f))};
}

inline float largest(Element element) {
  switch (element) {
    case Element::kE4m3: return 448.0f;
    case Element::kE5m2: return 57344.0f;
    case Element::kE4m3fnuz: return 240.0f;
    case Element::kE5m2fnuz: return 57344.0f;
    default: return 127.0f;
  }
}

inline Scale make_scale(ScaleKind kind, Element element, const float* values, int64_t n) {
  if (kind == ScaleKind::kF32Zero4) return with_zero_point(values, n);
  const float peak = peak_of(values, n);
  if (kind == ScaleKind::kUe8m0) return least_power(peak, largest(element));
  const float factor = peak / largest(element);
  return {factor == 0.0f ? 1.0f : factor, 0.0f};
}

// Elements to values.
inline void apply(const Scale& scale, ScaleKind kind, float* values, int64_t n) {
  if (kind == ScaleKind::kF32Zero4) {
    for (int64_t i = 0; i < n; ++i) values[i] = (values[i] - scale.zero) * scale.factor;
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] *= scale.factor;
  }
}

// Values to what is rounded to elements.
inline void remove(const Scale& scale, ScaleKind kind, float* values, int64_t n) {
  if (kind == ScaleKind::kF32Zero4) {
    // Beyond these the element is at its end whatever the zero point, 0 to 15, is.
    for (int64_t i = 0; i < n; ++i) {
      const int32_t element = encode_int(values[i] / scale.factor, -16.0f, 31.0f);
      values[i] = static_cast<float>(element) + scale.zero;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] /= scale.factor;
  }
}

}  // namespace transload
