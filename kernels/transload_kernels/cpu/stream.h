// Copies and fills that go past the caches.
//
// A store to memory that nobody has read first costs a read of its line; non-temporal stores save
// it, and leave the caches to others. What is to be read again at once is better off without.
#pragma once

#include <algorithm>

#include "vector.h"

namespace transload {

// Shortest run of any alignment that is written past the caches (not tuned), and the fewest bytes
// of a call for that: with it calls of 256 and 512 KiB took a quarter less time, of 64 KiB a sixth
// (two vCPUs of an AMD EPYC, bench/kernels.py --sections gather). What is so small is left where
// its reader finds it.
constexpr int64_t kStreamRunBytes = 256;
#if defined(TRANSLOAD_STREAM_CALL_BYTES)  // for tests
constexpr int64_t kStreamCallBytes = TRANSLOAD_STREAM_CALL_BYTES;
#else
constexpr int64_t kStreamCallBytes = 128 << 10;
#endif

inline void prefetch(const uint8_t* place) { __builtin_prefetch(place, 0, 2); }

// Into the first-level cache, past the second.
inline void prefetch_once(const uint8_t* place) { __builtin_prefetch(place, 0, 0); }

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
  const auto to_line = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) & 63);
  const int64_t head = std::min(to_line, num_bytes);
  if (to_line % 16 == 0 && head % 16 == 0) {
    for (int64_t at = 0; at < head; at += 16) stream_vector<16>(dst + at, src + at);
  } else {
    std::memcpy(dst, src, static_cast<size_t>(head));
  }
  return head;
}

// How far reading is ahead of writing. None and 512 to 4,096 bytes were within 12 % of each other,
// less than the spread; 8,192 was a fifth slower (two vCPUs of an AMD EPYC, runs of 64 MiB).
constexpr int64_t kAheadBytes = 1024;

// A run past the caches, whose first kAheadBytes had better be on their way.
inline void stream_copy(uint8_t* dst, const uint8_t* src, int64_t num_bytes) {
  int64_t at = copy_head(dst, src, num_bytes);
  for (; at + kAheadBytes + 256 <= num_bytes; at += 256) {
    for (int64_t line = 0; line < 256; line += 64) {
      prefetch(src + at + line + kAheadBytes);
      stream_line(dst + at + line, src + at + line);
    }
  }
  for (; at + 64 <= num_bytes; at += 64) stream_line(dst + at, src + at);
  for (; at + 16 <= num_bytes; at += 16) stream_vector<16>(dst + at, src + at);
  std::memcpy(dst + at, src + at, static_cast<size_t>(num_bytes - at));
}

// A run past the caches from where it is near; before() is called for each line.
template <typename Before>
inline void stream_near(uint8_t* dst, const uint8_t* src, int64_t num_bytes, const Before& before) {
  int64_t at = copy_head(dst, src, num_bytes);
  for (; at + 64 <= num_bytes; at += 64) {
    before();
    stream_line(dst + at, src + at);
  }
  for (; at + 16 <= num_bytes; at += 16) stream_vector<16>(dst + at, src + at);
  std::memcpy(dst + at, src + at, static_cast<size_t>(num_bytes - at));
}

// Rows in any order of addresses, which no processor foresees: they are asked for when they are
// pushed, and copied when some more are. Of a short row all lines are; of a long one a line of each
// page, all at once, so that pages are looked up side by side.
//
// Rows of 32 KiB wait, 128 at most: of rows of 64 to 1,152 bytes 16, 32 and 64 KiB did alike within
// the spread, 2 KiB up to a third worse. The pages are worth 10 % at rows of 64 and 256 KiB from
// random places (two vCPUs of an AMD EPYC, pages of 4 KiB, bench/kernels.py).
class StreamQueue {
 public:
  explicit StreamQueue(int64_t row_bytes)
      : depth_(std::clamp<int64_t>(kWaitingBytes / std::max<int64_t>(row_bytes, 1), 1, kMost)) {}
  ~StreamQueue() {
    for (int64_t i = 0; is_used_ && i < depth_; ++i) push(nullptr, nullptr, 0);
  }
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  void push(uint8_t* dst, const uint8_t* src, int64_t num_bytes) {
    is_used_ = true;
    const int64_t step = num_bytes < kPageBytes ? 64 : kPageBytes;
    const int64_t early = std::min(num_bytes, kMostPages * step);
    for (int64_t at = 0; at < early; at += step) prefetch(src + at);
    const Row row = rows_[next_];
    rows_[next_] = {dst, src, num_bytes};
    next_ = next_ + 1 == depth_ ? 0 : next_ + 1;
    if (row.num_bytes > 0) stream_copy(row.dst, row.src, row.num_bytes);
  }

 private:
  struct Row {
    uint8_t* dst;
    const uint8_t* src;
    int64_t num_bytes;
  };

  static constexpr int64_t kWaitingBytes = 32 << 10, kMost = 128;
  static constexpr int64_t kPageBytes = 4096, kMostPages = 64;
  Row rows_[kMost] = {};
  int64_t depth_, next_ = 0;
  bool is_used_ = false;
};

}  // namespace transload
