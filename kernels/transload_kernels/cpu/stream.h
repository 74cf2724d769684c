// Copies and fills that go past the caches.
//
// A store to memory that nobody has read first costs a read of its line; non-temporal stores save
// it, and leave the caches to others. What is to be read again at once is better off without.
#pragma once

#include "vector.h"

namespace transload {

// Shortest run that is written past the caches, and the fewest bytes of a call for that.
constexpr int64_t kStreamRunBytes = 256;
#if defined(TRANSLOAD_STREAM_CALL_BYTES)  // for tests
constexpr int64_t kStreamCallBytes = TRANSLOAD_STREAM_CALL_BYTES;
#else
constexpr int64_t kStreamCallBytes = 1 << 20;
#endif

inline void prefetch(const uint8_t* place) { __builtin_prefetch(place, 0, 2); }

// One vector of each width, loaded from anywhere and streamed to an aligned place.
template <int kBytes>
inline void stream_vector(uint8_t* dst, const uint8_t* src) {
#if defined(TRANSLOAD_AVX512)
  if constexpr (kBytes == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
    return;
  }
#endif
#if defined(TRANSLOAD_AVX2)
  if constexpr (kBytes == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)));
    return;
  }
#endif
#if defined(TRANSLOAD_SSE2)
  if constexpr (kBytes == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
    return;
  }
#endif
  std::memcpy(dst, src, kBytes);
}

#if defined(TRANSLOAD_AVX512)
constexpr int kVectorBytes = 64;
#elif defined(TRANSLOAD_AVX2)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

inline void stream_line(uint8_t* dst, const uint8_t* src) {
  for (int at = 0; at < 64; at += kVectorBytes) stream_vector<kVectorBytes>(dst + at, src + at);
}

// Up to the next line of dst, 16 bytes at a time past the caches where dst allows; the neighbour in
// the line, if it comes next, goes out with them.
inline int64_t copy_head(uint8_t* dst, const uint8_t* src, int64_t num_bytes) {
  int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) & 63);
  if (head > num_bytes) head = num_bytes;
  if (head % 16 != 0) {
    std::memcpy(dst, src, static_cast<size_t>(head));
  } else {
    for (int64_t at = 0; at < head; at += 16) stream_vector<16>(dst + at, src + at);
  }
  return head;
}

// A run past the caches; the reader of src is `ahead` bytes in front.
inline void stream_copy(uint8_t* dst, const uint8_t* src, int64_t num_bytes) {
  int64_t at = copy_head(dst, src, num_bytes);
  for (; at + 256 <= num_bytes; at += 256) {
    for (int64_t line = 0; line < 256; line += 64) {
      prefetch(src + at + line + 1024);
      stream_line(dst + at + line, src + at + line);
    }
  }
  for (; at + 64 <= num_bytes; at += 64) stream_line(dst + at, src + at);
  for (; at + 16 <= num_bytes; at += 16) stream_vector<16>(dst + at, src + at);
  std::memcpy(dst + at, src + at, static_cast<size_t>(num_bytes - at));
}

}  // namespace transload
