// copy_runs, relayout_rows and zero_tail: bytes that stay as they are.
#include "nest.h"
#include "rows.h"
#include "stream.h"
#include "threads.h"

namespace transload {
namespace {

using Row = void (*)(uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count,
                     int64_t dst_stride, int64_t src_stride);

// Rows of a width that the compiler knows: one or a few loads and stores.
template <int kBytes>
void fixed_rows(uint8_t* dst, const uint8_t* src, int64_t, int64_t count, int64_t dst_stride,
                int64_t src_stride) {
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(dst + row * dst_stride, src + row * src_stride, kBytes);
    // Vectors of gathered and scattered pieces are what compilers make of this loop, and slower.
    asm volatile("" ::: "memory");
  }
}

void any_rows(uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count,
              int64_t dst_stride, int64_t src_stride) {
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(dst + row * dst_stride, src + row * src_stride, static_cast<size_t>(row_bytes));
  }
}

Row fixed_function(int64_t row_bytes) {
  switch (row_bytes) {
    case 1: return fixed_rows<1>;
    case 2: return fixed_rows<2>;
    case 4: return fixed_rows<4>;
    case 8: return fixed_rows<8>;
    case 16: return fixed_rows<16>;
    case 32: return fixed_rows<32>;
    case 64: return fixed_rows<64>;
    case 128: return fixed_rows<128>;
    default: return any_rows;
  }
}

// Rows that fill lines by themselves: long ones, and lines.
bool fills_lines(const uint8_t* dst, int64_t row_bytes, int64_t dst_stride) {
  if (row_bytes >= kStreamRunBytes) return true;
  return reinterpret_cast<uintptr_t>(dst) % 64 == 0 && row_bytes % 64 == 0 && dst_stride % 64 == 0;
}

// Short rows that follow each other in the destination, joined in the first-level cache until they
// are long enough to go past all.
class Joiner {
 public:
  ~Joiner() { flush(); }
  Joiner() = default;
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

  void rows(Row copy, uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count,
            int64_t src_stride) {
    while (count > 0) {
      if (dst != dst_ + held_ || held_ + row_bytes > kBytes) {
        flush();
        dst_ = dst;
      }
      const int64_t fit = std::min(count, (kBytes - held_) / row_bytes);
      copy(stage_ + held_, src, row_bytes, fit, row_bytes, src_stride);
      held_ += fit * row_bytes;
      dst += fit * row_bytes;
      src += fit * src_stride;
      count -= fit;
    }
  }

 private:
  void flush() {
    if (held_ > 0) stream_copy(dst_, stage_, held_);
    held_ = 0;
  }

  static constexpr int64_t kBytes = 4096;
  alignas(64) uint8_t stage_[kBytes];
  uint8_t* dst_ = nullptr;
  int64_t held_ = 0;
};

// The rows of one part of a call.
class Copier {
 public:
  Copier(int64_t row_bytes, bool is_streamed) : queue_(row_bytes), is_streamed_(is_streamed) {}

  void rows(uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count, int64_t dst_stride,
            int64_t src_stride) {
    if (is_streamed_ && fills_lines(dst, row_bytes, dst_stride)) {
      for (int64_t row = 0; row < count; ++row) {
        queue_.push(dst + row * dst_stride, src + row * src_stride, row_bytes);
      }
      return;
    }
    const Row copy = fixed_function(row_bytes);
    if (is_streamed_ && (count == 1 || dst_stride == row_bytes)) {
      joiner_.rows(copy, dst, src, row_bytes, count, src_stride);
    } else {
      copy(dst, src, row_bytes, count, dst_stride, src_stride);
    }
  }

 private:
  StreamQueue queue_;
  Joiner joiner_;
  bool is_streamed_;
};

struct Run {
  int64_t dst_buffer, dst_offset, src_buffer, src_offset, num_bytes;
};

}  // namespace

Status relayout(uint8_t* dst, const uint8_t* src, const int64_t* dst_offsets,
                const int64_t* src_offsets, int64_t n, int64_t row_bytes, const int64_t* loops,
                int64_t num_loops, int32_t threads) {
  const Nest<2> nest({dst_offsets, src_offsets}, n, {row_bytes, row_bytes}, loops, num_loops,
                     Merge::kAny);
  const int64_t total = nest.num_rows() * nest.row_bytes[kDst];
  const bool is_streamed = total >= kStreamCallBytes;
  return parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(total, part, parts, 64);
    Copier copier(nest.row_bytes[kDst], is_streamed);
    nest.walk_bytes(share.begin, share.end,
                    [&](const auto& at, int64_t bytes, int64_t count, int64_t) {
                      copier.rows(dst + at[kDst], src + at[kSrc], bytes, count,
                                  nest.inner.stride[kDst], nest.inner.stride[kSrc]);
                    });
  });
}

}  // namespace transload

using namespace transload;

extern "C" {

TRANSLOAD_API int32_t transload_relayout_rows(
    uint8_t* dst, const uint8_t* src, const int64_t* dst_offsets, const int64_t* src_offsets,
    int64_t n, int64_t row_bytes, const int64_t* loops, int64_t num_loops, int32_t threads) {
  return relayout(dst, src, dst_offsets, src_offsets, n, row_bytes, loops, num_loops, threads);
}

TRANSLOAD_API int32_t transload_copy_runs(uint8_t* const* dst, const uint8_t* const* src,
                                          const int64_t* runs, int64_t n, int32_t threads) {
  const Run* run = reinterpret_cast<const Run*>(runs);
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += run[i].num_bytes;
  if (total == 0) return kDone;
  const bool is_streamed = total >= kStreamCallBytes;
  return parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(total, part, parts, 64);
    Copier copier(total / n, is_streamed);
    int64_t at = 0;
    for (int64_t i = 0; i < n && at < share.end; at += run[i++].num_bytes) {
      const int64_t from = std::max<int64_t>(share.begin - at, 0);
      const int64_t to = std::min(share.end - at, run[i].num_bytes);
      if (from >= to) continue;
      copier.rows(dst[run[i].dst_buffer] + run[i].dst_offset + from,
                  src[run[i].src_buffer] + run[i].src_offset + from, to - from, 1, 0, 0);
    }
  });
}

TRANSLOAD_API int32_t transload_zero_tail(
    uint8_t* dst, const int64_t* offsets, int64_t n, int64_t row_bytes, const int64_t* loops,
    int64_t num_loops, int32_t threads) {
  const Nest<1> nest({offsets}, n, {row_bytes}, loops, num_loops, Merge::kAny);
  const int64_t total = nest.num_rows() * nest.row_bytes[kDst];
  return parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(total, part, parts, 64);
    nest.walk_bytes(share.begin, share.end,
                    [&](const auto& at, int64_t bytes, int64_t count, int64_t) {
                      for (int64_t row = 0; row < count; ++row) {
                        std::memset(dst + at[kDst] + row * nest.inner.stride[kDst], 0,
                                    static_cast<size_t>(bytes));
                      }
                    });
  });
}

}  // extern "C"
