// digest_blocks: 64-bit words mixed with their index, summed without an order. The definition is
// in reference/digest.py.
#include "nest.h"
#include "rows.h"
#include "threads.h"

namespace transload {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;
constexpr uint64_t kMix = 0xD6E8FEB86659FD93u;
constexpr uint64_t kLength = 0xC2B2AE3D27D4EB4Fu;

inline uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= kMix;
  x ^= x >> 32;
  x *= kMix;
  return x ^ x >> 32;
}

// The sum over whole words; index is the first one's, counted from 0.
uint64_t sum_words(const uint8_t* at, int64_t num_words, int64_t index) {
  uint64_t sum = 0;
  uint64_t step = kStep * static_cast<uint64_t>(index + 1);
  for (int64_t i = 0; i < num_words; ++i) {
    uint64_t word;
    std::memcpy(&word, at + 8 * i, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    sum += mix(word + step + kStep * static_cast<uint64_t>(i));
  }
  return sum;
}

// Joins bytes that come in pieces of any length into words.
class Joined {
 public:
  void add(const uint8_t* bytes, int64_t num_bytes) {
    while (num_bytes > 0) {
      const int64_t taken = std::min(num_bytes, kBytes - held_);
      std::memcpy(buffer_ + held_, bytes, static_cast<size_t>(taken));
      held_ += taken;
      bytes += taken;
      num_bytes -= taken;
      if (held_ == kBytes) flush();
    }
  }

  // The sum of the words so far, the last one filled up with zeros; and from the beginning again.
  uint64_t take() {
    std::memset(buffer_ + held_, 0, static_cast<size_t>(-held_ & 7));
    held_ += -held_ & 7;
    flush();
    const uint64_t sum = sum_;
    sum_ = 0;
    words_ = 0;
    return sum;
  }

 private:
  void flush() {
    sum_ += sum_words(buffer_, held_ / 8, words_);
    words_ += held_ / 8;
    held_ = 0;
  }

  static constexpr int64_t kBytes = 4096;
  uint8_t buffer_[kBytes];
  int64_t held_ = 0, words_ = 0;
  uint64_t sum_ = 0;
};

// Rows of whole words: any part of any block may be summed anywhere.
void sum_whole_words(const uint8_t* src, const Nest<1>& nest, const Share& share, uint64_t* sums) {
  const int64_t block_bytes = nest.rows_per_offset * nest.row_bytes[0];
  nest.walk_bytes(share.begin, share.end,
                  [&](const auto& at, int64_t bytes, int64_t count, int64_t byte) {
                    int64_t index = byte % block_bytes / 8;
                    uint64_t sum = 0;
                    for (int64_t row = 0; row < count; ++row, index += bytes / 8) {
                      sum += sum_words(src + at[0] + row * nest.inner.stride[0], bytes / 8, index);
                    }
                    __atomic_fetch_add(sums + byte / block_bytes, sum, __ATOMIC_RELAXED);
                  });
}

// Rows whose words end in the next row: one thread a block.
void sum_joined(const uint8_t* src, const Nest<1>& nest, const Share& blocks, uint64_t* sums) {
  Joined joined;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t row = block * nest.rows_per_offset;
    nest.walk(row, row + nest.rows_per_offset, [&](const auto& at, int64_t count, int64_t) {
      for (int64_t i = 0; i < count; ++i) {
        joined.add(src + at[0] + i * nest.inner.stride[0], nest.row_bytes[0]);
      }
    });
    sums[block] = joined.take();
  }
}

}  // namespace
}  // namespace transload

using namespace transload;

extern "C" {

// Digests is [n], zeros.
TRANSLOAD_API int32_t transload_digest_blocks(uint64_t* digests, const uint8_t* src,
                                              const int64_t* offsets, int64_t n, int64_t row_bytes,
                                              const int64_t* loops, int64_t num_loops,
                                              int32_t threads) {
  const Nest<1> nest({offsets}, n, {row_bytes}, loops, num_loops, Merge::kOrdered);
  const int64_t block_bytes = nest.rows_per_offset * nest.row_bytes[0];
  const int64_t total = n * block_bytes;
  const Status status = parallel(num_threads(threads, total), [&](int part, int parts) {
    if (nest.row_bytes[0] % 8 == 0) {
      if (total > 0) sum_whole_words(src, nest, Share(total, part, parts, 64), digests);
    } else {
      sum_joined(src, nest, Share(n, part, parts, 1), digests);
    }
  });
  for (int64_t block = 0; block < n; ++block) {
    digests[block] = mix(kLength * static_cast<uint64_t>(block_bytes) + digests[block]);
  }
  return status;
}

}  // extern "C"
