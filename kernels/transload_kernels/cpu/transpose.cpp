// transpose_pages: tiles whose fast axis differs between the sides.
#include "nest.h"
#include "rows.h"
#include "threads.h"
#include "tiles.h"

namespace transload {
namespace {

// A tile whose columns follow each other in the source and whose rows do in the destination.
struct Tile {
  int64_t rows, cols, src_stride, dst_stride;
};

template <int kElement>
void turn_elements(uint8_t* dst, const uint8_t* src, const Tile& tile) {
  for (int64_t col = 0; col < tile.cols; ++col) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      std::memcpy(dst + col * tile.dst_stride + row * kElement,
                  src + row * tile.src_stride + col * kElement, kElement);
    }
  }
}

// Rows in pieces as wide as kLanes allow, what is left over in narrower ones, then alone.
template <int kElement, int kLanes>
void turn_rows(uint8_t* dst, const uint8_t* src, const Tile& tile) {
  if constexpr (kLanes == 0) {
    turn_elements<kElement>(dst, src, tile);
  } else {
    constexpr int64_t kWide = 16 / kElement, kRows = kWide * kLanes;
    const int64_t cols = tile.cols / kWide * kWide;
    int64_t row = 0;
    for (; row + kRows <= tile.rows; row += kRows) {
      uint8_t* to = dst + row * kElement;
      const uint8_t* from = src + row * tile.src_stride;
      for (int64_t col = 0; col < cols; col += kWide) {
        turn_tile<kElement, kLanes>(to + col * tile.dst_stride, from + col * kElement,
                                    tile.dst_stride, tile.src_stride);
      }
      turn_elements<kElement>(to + cols * tile.dst_stride, from + cols * kElement,
                              {kRows, tile.cols - cols, tile.src_stride, tile.dst_stride});
    }
    turn_rows<kElement, kLanes / 2>(
        dst + row * kElement, src + row * tile.src_stride,
        {tile.rows - row, tile.cols, tile.src_stride, tile.dst_stride});
  }
}

// Bytes of a piece of a tile that is turned in the first-level cache, then written past all.
constexpr int64_t kStageBytes = 8192;

// Turned piece by piece into a stage, from which whole lines go out in sequence. The stage's rows
// lie as close as the tile's rows are in the destination, if they are close there.
template <int kElement>
void turn_streamed(uint8_t* dst, const uint8_t* src, const Tile& tile) {
  alignas(64) uint8_t stage[kStageBytes];
  const int64_t line = tile.rows * kElement;
  const bool is_dense = tile.dst_stride == line;
  const int64_t most_rows = line <= kStageBytes / 16 ? tile.rows : kStageBytes / 16 / kElement;
  for (int64_t row = 0; row < tile.rows; row += most_rows) {
    const int64_t rows = std::min(most_rows, tile.rows - row);
    const int64_t bytes = rows * kElement;
    const int64_t most_cols = kStageBytes / bytes / 16 * 16;
    for (int64_t col = 0; col < tile.cols; col += most_cols) {
      const int64_t cols = std::min(most_cols, tile.cols - col);
      turn_rows<kElement, kMostLanes>(stage, src + row * tile.src_stride + col * kElement,
                                      {rows, cols, tile.src_stride, bytes});
      uint8_t* to = dst + col * tile.dst_stride + row * kElement;
      if (is_dense && rows == tile.rows) {
        stream_copy(to, stage, cols * bytes);
        continue;
      }
      for (int64_t at = 0; at < cols; ++at) {
        stream_copy(to + at * tile.dst_stride, stage + at * bytes, bytes);
      }
    }
  }
}

using Turn = void (*)(uint8_t* dst, const uint8_t* src, const Tile& tile);

template <int kElement>
Turn turn_function(bool is_streamed) {
  return is_streamed ? turn_streamed<kElement> : turn_rows<kElement, kMostLanes>;
}

Turn turn_function(int64_t element_bytes, bool is_streamed) {
  switch (element_bytes) {
    case 1: return turn_function<1>(is_streamed);
    case 2: return turn_function<2>(is_streamed);
    case 4: return turn_function<4>(is_streamed);
    default: return turn_function<8>(is_streamed);
  }
}

// Whether whole lines of the destination are written: its rows are long and begin on lines, or
// follow each other without a gap.
bool fills_lines(const Tile& tile, int64_t element_bytes) {
  const int64_t line = tile.rows * element_bytes;
  if (line % 16 != 0) return false;
  return tile.dst_stride == line || (line % 64 == 0 && tile.dst_stride % 64 == 0);
}

}  // namespace
}  // namespace transload

using namespace transload;

extern "C" {

// Tile is (count, destination stride, source stride) of rows, then of columns; loops likewise.
TRANSLOAD_API void transload_transpose_pages(uint8_t* dst, const uint8_t* src,
                                             const int64_t* dst_offsets, const int64_t* src_offsets,
                                             int64_t n, int64_t element_bytes, const int64_t* tile,
                                             const int64_t* loops, int64_t num_loops,
                                             int32_t threads) {
  const int64_t* rows = tile;
  const int64_t* cols = tile + 3;
  if (rows[1] != element_bytes || cols[2] != element_bytes) std::swap(rows, cols);
  if (rows[1] != element_bytes || cols[2] != element_bytes) {
    std::vector<int64_t> all(loops, loops + 3 * num_loops);
    all.insert(all.end(), tile, tile + 6);
    relayout(dst, src, dst_offsets, src_offsets, n, element_bytes, all.data(), num_loops + 2,
             threads);
    return;
  }
  const Tile turned{rows[0], cols[0], rows[2], cols[1]};
  const Nest<2> nest({dst_offsets, src_offsets}, n, {0, 0}, loops, num_loops, Merge::kAny);
  const int64_t total = nest.num_rows() * turned.rows * turned.cols * element_bytes;
  const bool is_streamed = total >= kStreamCallBytes && fills_lines(turned, element_bytes);
  const Turn turn = turn_function(element_bytes, is_streamed);
  parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(nest.num_rows(), part, parts, 1);
    nest.walk(share.begin, share.end, [&](const auto& at, int64_t count, int64_t) {
      for (int64_t i = 0; i < count; ++i) {
        turn(dst + at[kDst] + i * nest.inner.stride[kDst],
             src + at[kSrc] + i * nest.inner.stride[kSrc], turned);
      }
    });
  });
}

}  // extern "C"
