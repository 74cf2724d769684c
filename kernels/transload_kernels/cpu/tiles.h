// Tiles of 1-, 2-, 4- and 8-byte elements, turned in registers.
//
// A vector of 16 bytes holds kWide elements. Interleaving vector i with vector i + kWide / 2,
// element by element, and that log2(kWide) times over, turns kWide x kWide elements. Wider
// registers do so with several tiles at once, one in each 16 bytes, which lie one after the other
// in what comes out: 64 bytes of the destination's fast axis, one line.
#pragma once

#include "stream.h"
#include "vector.h"

namespace transload {

// A tile whose columns follow each other in the source and whose rows do in the destination.
struct Tile {
  int64_t rows, cols, src_stride, dst_stride;
};

template <int kLanes>
struct Register;

template <int kLanes, int kElement>
struct Zip;

#if defined(TRANSLOAD_SSE2)

#define TRANSLOAD_ZIP(kLanes, kElement, Value, prefix, suffix)                       \
  template <>                                                                        \
  struct Zip<kLanes, kElement> {                                                     \
    static Value low(Value a, Value b) { return prefix##_unpacklo_##suffix(a, b); }  \
    static Value high(Value a, Value b) { return prefix##_unpackhi_##suffix(a, b); } \
  };

#define TRANSLOAD_ZIPS(kLanes, Value, prefix)       \
  TRANSLOAD_ZIP(kLanes, 1, Value, prefix, epi8)     \
  TRANSLOAD_ZIP(kLanes, 2, Value, prefix, epi16)    \
  TRANSLOAD_ZIP(kLanes, 4, Value, prefix, epi32)    \
  TRANSLOAD_ZIP(kLanes, 8, Value, prefix, epi64)

inline __m128i load16(const uint8_t* src) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
}

TRANSLOAD_ZIPS(1, __m128i, _mm)
template <>
struct Register<1> {
  using Value = __m128i;
  static Value load(const uint8_t* src, int64_t) { return load16(src); }
};

#if defined(TRANSLOAD_AVX2)
TRANSLOAD_ZIPS(2, __m256i, _mm256)
template <>
struct Register<2> {
  using Value = __m256i;
  static Value load(const uint8_t* src, int64_t lane_stride) {
    const __m256i low = _mm256_castsi128_si256(load16(src));
    return _mm256_inserti128_si256(low, load16(src + lane_stride), 1);
  }
};
#endif

#if defined(TRANSLOAD_AVX512)
TRANSLOAD_ZIPS(4, __m512i, _mm512)
template <>
struct Register<4> {
  using Value = __m512i;
  static Value load(const uint8_t* src, int64_t lane_stride) {
    const __m512i low = _mm512_castsi256_si512(Register<2>::load(src, lane_stride));
    return _mm512_inserti64x4(low, Register<2>::load(src + 2 * lane_stride, lane_stride), 1);
  }
};
#endif

#elif defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TRANSLOAD_SHUFFLES 1

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

#define TRANSLOAD_ZIP(kElement, Lane, lows, highs)                           \
  template <>                                                                \
  struct Zip<1, kElement> {                                            \
    typedef Lane Lanes __attribute__((vector_size(16)));                     \
    static Bytes16 low(Bytes16 a, Bytes16 b) {                               \
      return (Bytes16)__builtin_shufflevector((Lanes)a, (Lanes)b, lows);     \
    }                                                                        \
    static Bytes16 high(Bytes16 a, Bytes16 b) {                              \
      return (Bytes16)__builtin_shufflevector((Lanes)a, (Lanes)b, highs);    \
    }                                                                        \
  };
#define TRANSLOAD_LIST(...) __VA_ARGS__
TRANSLOAD_ZIP(1, uint8_t, TRANSLOAD_LIST(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
              TRANSLOAD_LIST(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
TRANSLOAD_ZIP(2, uint16_t, TRANSLOAD_LIST(0, 8, 1, 9, 2, 10, 3, 11),
              TRANSLOAD_LIST(4, 12, 5, 13, 6, 14, 7, 15))
TRANSLOAD_ZIP(4, uint32_t, TRANSLOAD_LIST(0, 4, 1, 5), TRANSLOAD_LIST(2, 6, 3, 7))
TRANSLOAD_ZIP(8, uint64_t, TRANSLOAD_LIST(0, 2), TRANSLOAD_LIST(1, 3))

template <>
struct Register<1> {
  using Value = Bytes16;
  static Value load(const uint8_t* src, int64_t) {
    Value value;
    std::memcpy(&value, src, 16);
    return value;
  }
};
#endif
#endif

#if defined(TRANSLOAD_AVX512)
constexpr int kMostLanes = 4;
#elif defined(TRANSLOAD_AVX2)
constexpr int kMostLanes = 2;
#elif defined(TRANSLOAD_SSE2) || defined(TRANSLOAD_SHUFFLES)
constexpr int kMostLanes = 1;
#else
constexpr int kMostLanes = 0;
#endif

// Source rows kLanes * kWide, each 16 bytes, turned: kWide destination rows of 16 * kLanes bytes.
template <int kElement, int kLanes>
struct Turned {
  static constexpr int kWide = 16 / kElement;
  typename Register<kLanes>::Value rows[kWide];

  Turned(const uint8_t* src, int64_t src_stride) {
    typename Register<kLanes>::Value turned[kWide];
    for (int i = 0; i < kWide; ++i) {
      rows[i] = Register<kLanes>::load(src + i * src_stride, kWide * src_stride);
    }
    for (int width = kWide; width > 1; width /= 2) {
      for (int i = 0; i < kWide / 2; ++i) {
        turned[2 * i] = Zip<kLanes, kElement>::low(rows[i], rows[i + kWide / 2]);
        turned[2 * i + 1] = Zip<kLanes, kElement>::high(rows[i], rows[i + kWide / 2]);
      }
      for (int i = 0; i < kWide; ++i) rows[i] = turned[i];
    }
  }
};

template <int kElement, int kLanes>
inline void turn_tile(uint8_t* dst, const uint8_t* src, int64_t dst_stride, int64_t src_stride) {
  const Turned<kElement, kLanes> turned(src, src_stride);
  for (int i = 0; i < turned.kWide; ++i) {
    std::memcpy(dst + i * dst_stride, &turned.rows[i], 16 * kLanes);
  }
}

// The same past the caches; dst and dst_stride are multiples of 16 * kLanes.
template <int kElement, int kLanes>
inline void stream_tile(uint8_t* dst, const uint8_t* src, int64_t dst_stride, int64_t src_stride) {
  const Turned<kElement, kLanes> turned(src, src_stride);
  for (int i = 0; i < turned.kWide; ++i) {
    stream_vector<16 * kLanes>(dst + i * dst_stride,
                               reinterpret_cast<const uint8_t*>(&turned.rows[i]));
  }
}

}  // namespace transload
