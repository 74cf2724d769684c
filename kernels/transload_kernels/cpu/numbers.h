// Elements to binary32 and back, a row at a time, in loops that compilers turn into vectors: no
// branches, no tables, integers of 32 bits. What is right is in reference/numbers.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "vector.h"

namespace transload {

// The order of formats.ELEMENT_BITS.
enum class Element { kF32, kF16, kBf16, kE4m3, kE5m2, kE4m3fnuz, kE5m2fnuz, kI8, kU4 };

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;
constexpr uint32_t kLargestBits = 0x7f7fffffu;

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// An integer in place of a float's value, ties to even: beside 1.5 * 2^23 a binary32 has no
// fraction. For magnitudes to 2^22.
constexpr float kRounder = 12582912.0f;
constexpr uint32_t kRounderBits = 0x4b400000u;

// A float of fewer bits: its widths, its bias, its patterns that are not finite numbers.
struct F16 {
  using Code = uint16_t;
  static constexpr int kMantissa = 10, kBias = 15;
  static constexpr uint32_t kMost = 0x7c00, kNan = 0x7e00, kInfinity = 0x7c00, kSign = 0x8000;
  static constexpr bool kHasMinusZero = true;
};
struct E4m3 {
  using Code = uint8_t;
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr uint32_t kMost = 0x7e, kNan = 0x7f, kInfinity = 0x7f, kSign = 0x80;
  static constexpr bool kHasMinusZero = true;
};
struct E5m2 {
  using Code = uint8_t;
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr uint32_t kMost = 0x7b, kNan = 0x7f, kInfinity = 0x7c, kSign = 0x80;
  static constexpr bool kHasMinusZero = true;
};
// The one NaN of these is what would be minus zero; patterns without a sign are all finite.
struct E4m3fnuz {
  using Code = uint8_t;
  static constexpr int kMantissa = 3, kBias = 8;
  static constexpr uint32_t kMost = 0x7f, kNan = 0x80, kInfinity = 0x80, kSign = 0x80;
  static constexpr bool kHasMinusZero = false;
};
struct E5m2fnuz {
  using Code = uint8_t;
  static constexpr int kMantissa = 2, kBias = 16;
  static constexpr uint32_t kMost = 0x7f, kNan = 0x80, kInfinity = 0x80, kSign = 0x80;
  static constexpr bool kHasMinusZero = false;
};

template <typename Type>
inline float decode_float(uint32_t code) {
  constexpr int kShift = 23 - Type::kMantissa;
  const uint32_t sign = (code & Type::kSign) * (0x80000000u / Type::kSign);
  const uint32_t size = code & (Type::kSign - 1);
  const uint32_t normal = (size << kShift) + (uint32_t{127 - Type::kBias} << 23);
  const float least = from_bits(uint32_t{128 - Type::kBias - Type::kMantissa} << 23);
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(size)) * least);
  uint32_t bits = size < (1u << Type::kMantissa) ? subnormal : normal;
  if (Type::kHasMinusZero) {
    // The first pattern past the finite ones is the infinity, where the type has one.
    const uint32_t beyond =
        Type::kInfinity != Type::kNan && size == Type::kInfinity ? kInfinityBits : kNanBits;
    bits = size >= Type::kInfinity ? beyond : bits;
  } else {
    bits = code == Type::kNan ? kNanBits : bits;
  }
  return from_bits(sign | bits);
}

template <typename Type>
inline uint32_t encode_float(float value) {
  constexpr int kShift = 23 - Type::kMantissa;
  constexpr uint32_t kLeastNormal = uint32_t{128 - Type::kBias} << 23;
  // Beside this power of two a binary32's last place is the type's least subnormal.
  constexpr uint32_t kRoundBits = uint32_t{151 - Type::kBias - Type::kMantissa} << 23;
  const uint32_t bits = bits_of(value), size = bits & 0x7fffffffu;
  const uint32_t half = (1u << (kShift - 1)) - 1 + ((size >> kShift) & 1);
  const uint32_t normal =
      ((size + half) >> kShift) - (uint32_t{127 - Type::kBias} << Type::kMantissa);
  const uint32_t subnormal = bits_of(from_bits(size) + from_bits(kRoundBits)) - kRoundBits;
  uint32_t code = size < kLeastNormal ? subnormal : normal;
  code = code < Type::kMost ? code : Type::kMost;
  uint32_t sign = (bits >> 31) * Type::kSign;
  if (!Type::kHasMinusZero) sign = code == 0 ? 0 : sign;
  return size > kInfinityBits ? Type::kNan : (sign | code);
}

inline uint32_t encode_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffffu) > kInfinityBits ? 0x7fc0u : rounded;
}

// Within least..most, a NaN as 0, to the nearest integer.
inline int32_t encode_int(float value, float least, float most) {
  value = value == value ? value : 0.0f;
  value = value < least ? least : value;
  value = value > most ? most : value;
  return static_cast<int32_t>(bits_of(value + kRounder) - kRounderBits);
}

template <typename Type>
void decode_floats(float* values, const uint8_t* src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    typename Type::Code code;
    std::memcpy(&code, src + i * static_cast<int64_t>(sizeof code), sizeof code);
    values[i] = decode_float<Type>(code);
  }
}

template <typename Type>
void encode_floats(uint8_t* dst, const float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto code = static_cast<typename Type::Code>(encode_float<Type>(values[i]));
    std::memcpy(dst + i * static_cast<int64_t>(sizeof code), &code, sizeof code);
  }
}

// Elements without their scales.
inline void decode(Element element, float* values, const uint8_t* src, int64_t n) {
  switch (element) {
    case Element::kF32:
      std::memcpy(values, src, static_cast<size_t>(4 * n));
      break;
    case Element::kF16:
      decode_floats<F16>(values, src, n);
      break;
    case Element::kBf16:
      for (int64_t i = 0; i < n; ++i) {
        uint16_t code;
        std::memcpy(&code, src + 2 * i, 2);
        values[i] = from_bits(uint32_t{code} << 16);
      }
      break;
    case Element::kE4m3:
      decode_floats<E4m3>(values, src, n);
      break;
    case Element::kE5m2:
      decode_floats<E5m2>(values, src, n);
      break;
    case Element::kE4m3fnuz:
      decode_floats<E4m3fnuz>(values, src, n);
      break;
    case Element::kE5m2fnuz:
      decode_floats<E5m2fnuz>(values, src, n);
      break;
    case Element::kI8:
      for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(static_cast<int8_t>(src[i]));
      break;
    case Element::kU4:
      for (int64_t i = 0; i < n / 2; ++i) {
        values[2 * i] = static_cast<float>(src[i] & 15);
        values[2 * i + 1] = static_cast<float>(src[i] >> 4);
      }
      break;
  }
}

inline void encode(Element element, uint8_t* dst, const float* values, int64_t n) {
  switch (element) {
    case Element::kF32:
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = values[i] == values[i] ? bits_of(values[i]) : kNanBits;
        std::memcpy(dst + 4 * i, &bits, 4);
      }
      break;
    case Element::kF16:
      encode_floats<F16>(dst, values, n);
      break;
    case Element::kBf16:
      for (int64_t i = 0; i < n; ++i) {
        const auto code = static_cast<uint16_t>(encode_bf16(values[i]));
        std::memcpy(dst + 2 * i, &code, 2);
      }
      break;
    case Element::kE4m3:
      encode_floats<E4m3>(dst, values, n);
      break;
    case Element::kE5m2:
      encode_floats<E5m2>(dst, values, n);
      break;
    case Element::kE4m3fnuz:
      encode_floats<E4m3fnuz>(dst, values, n);
      break;
    case Element::kE5m2fnuz:
      encode_floats<E5m2fnuz>(dst, values, n);
      break;
    case Element::kI8:
      for (int64_t i = 0; i < n; ++i) {
        dst[i] = static_cast<uint8_t>(encode_int(values[i], -128.0f, 127.0f));
      }
      break;
    case Element::kU4:
      for (int64_t i = 0; i < n / 2; ++i) {
        const int32_t low = encode_int(values[2 * i], 0.0f, 15.0f);
        const int32_t high = encode_int(values[2 * i + 1], 0.0f, 15.0f);
        dst[i] = static_cast<uint8_t>(low | high << 4);
      }
      break;
  }
}

inline int64_t bits_per_element(Element element) {
  switch (element) {
    case Element::kF32: return 32;
    case Element::kF16:
    case Element::kBf16: return 16;
    case Element::kU4: return 4;
    default: return 8;
  }
}

}  // namespace transload
