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
  }
}

void any_rows(uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count,
              int64_t dst_stride, int64_t src_stride) {
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(dst + row * dst_stride, src + row * src_stride, static_cast<size_t>(row_bytes));
  }
}

// Rows past the caches. The processor's own prefetcher starts anew at each row, so the first lines
// of a row to come are asked for early.
void stream_rows(uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count,
                 int64_t dst_stride, int64_t src_stride) {
  const int64_t early = std::min<int64_t>(row_bytes, 1024);
  const int64_t ahead = row_bytes >= 4096 ? 1 : (4096 / row_bytes);
  for (int64_t row = 0; row < count; ++row) {
    if (src_stride != row_bytes && row + ahead < count) {
      const uint8_t* next = src + (row + ahead) * src_stride;
      for (int64_t at = 0; at < early; at += 64) prefetch(next + at);
    }
    stream_copy(dst + row * dst_stride, src + row * src_stride, row_bytes);
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

// What writes whole lines goes past the caches: long rows, rows of lines, rows without gaps.
bool fills_lines(const uint8_t* dst, int64_t row_bytes, int64_t dst_stride) {
  if (row_bytes >= kStreamRunBytes) return true;
  const auto at = reinterpret_cast<uintptr_t>(dst);
  if (at % 64 == 0 && row_bytes % 64 == 0 && dst_stride % 64 == 0) return true;
  return at % 16 == 0 && row_bytes % 16 == 0 && dst_stride == row_bytes;
}

void copy_rows(uint8_t* dst, const uint8_t* src, int64_t row_bytes, int64_t count,
               int64_t dst_stride, int64_t src_stride, bool is_streamed) {
  const bool past = is_streamed && fills_lines(dst, row_bytes, dst_stride);
  const Row copy = past ? stream_rows : fixed_function(row_bytes);
  copy(dst, src, row_bytes, count, dst_stride, src_stride);
}

struct Run {
  int64_t dst_buffer, dst_offset, src_buffer, src_offset, num_bytes;
};

}  // namespace

void relayout(uint8_t* dst, const uint8_t* src, const int64_t* dst_offsets,
              const int64_t* src_offsets, int64_t n, int64_t row_bytes, const int64_t* loops,
              int64_t num_loops, int32_t threads) {
  const Nest<2> nest({dst_offsets, src_offsets}, n, {row_bytes, row_bytes}, loops, num_loops,
                     Merge::kAny);
  const int64_t total = nest.num_rows() * nest.row_bytes[kDst];
  const bool is_streamed = total >= kStreamCallBytes;
  parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(total, part, parts, 64);
    nest.walk_bytes(share.begin, share.end,
                    [&](const auto& at, int64_t bytes, int64_t count, int64_t) {
                      copy_rows(dst + at[kDst], src + at[kSrc], bytes, count,
                                nest.inner.stride[kDst], nest.inner.stride[kSrc], is_streamed);
                    });
  });
}

}  // namespace transload

using namespace transload;

extern "C" {

TRANSLOAD_API void transload_relayout_rows(uint8_t* dst, const uint8_t* src,
                                           const int64_t* dst_offsets, const int64_t* src_offsets,
                                           int64_t n, int64_t row_bytes, const int64_t* loops,
                                           int64_t num_loops, int32_t threads) {
  relayout(dst, src, dst_offsets, src_offsets, n, row_bytes, loops, num_loops, threads);
}

TRANSLOAD_API void transload_copy_runs(uint8_t* const* dst, const uint8_t* const* src,
                                       const int64_t* runs, int64_t n, int32_t threads) {
  const Run* run = reinterpret_cast<const Run*>(runs);
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += run[i].num_bytes;
  const bool is_streamed = total >= kStreamCallBytes;
  parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(total, part, parts, 64);
    int64_t at = 0;
    for (int64_t i = 0; i < n && at < share.end; at += run[i++].num_bytes) {
      const int64_t from = std::max<int64_t>(share.begin - at, 0);
      const int64_t to = std::min(share.end - at, run[i].num_bytes);
      if (from >= to) continue;
      copy_rows(dst[run[i].dst_buffer] + run[i].dst_offset + from,
                src[run[i].src_buffer] + run[i].src_offset + from, to - from, 1, 0, 0,
                is_streamed);
    }
  });
}

TRANSLOAD_API void transload_zero_tail(uint8_t* dst, const int64_t* offsets, int64_t n,
                                       int64_t row_bytes, const int64_t* loops, int64_t num_loops,
                                       int32_t threads) {
  const Nest<1> nest({offsets}, n, {row_bytes}, loops, num_loops, Merge::kAny);
  const int64_t total = nest.num_rows() * nest.row_bytes[kDst];
  parallel(num_threads(threads, total), [&](int part, int parts) {
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
