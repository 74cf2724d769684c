// transpose_pages: tiles whose fast axis differs between the sides.
#include "lines.h"
#include "nest.h"
#include "rows.h"
#include "threads.h"

namespace transload {
namespace {

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

// Lines of a piece that is to be turned next, asked for one by one: all at once they would keep
// the processor from everything else, one for each line written they come in that one's shadow.
class Lines {
 public:
  Lines(const uint8_t* src, int64_t rows, int64_t row_bytes, int64_t stride)
      : row_(src), rows_(rows), row_bytes_(row_bytes), stride_(stride) {
    if (row_bytes == stride) {
      row_bytes_ *= rows;
      rows_ = std::min<int64_t>(rows, 1);
    }
  }

  // Whether there was one.
  bool next() {
    if (rows_ == 0) return false;
    prefetch(row_ + at_);
    at_ += 64;
    if (at_ < row_bytes_) return true;
    at_ = 0;
    row_ += stride_;
    --rows_;
    return true;
  }

 private:
  const uint8_t* row_;
  int64_t rows_, row_bytes_, stride_, at_ = 0;
};

// The tiles of one part of a call, in pieces that fit the first-level cache. Where whole lines are
// written, a piece is turned into a stage, from which they go past the caches.
template <int kElement>
class StageTurner {
 public:
  StageTurner(const Tile& tile, bool is_streamed) : tile_(tile), is_streamed_(is_streamed) {
    piece_cols_ = std::min(tile.cols, kMostCols);
    const int64_t most = kStageBytes / (piece_cols_ * kElement);
    piece_rows_ = std::min(tile.rows, most / kLine * kLine);
    is_dense_ = piece_rows_ == tile.rows && tile.dst_stride == tile.rows * kElement;
    const int64_t bytes = std::max<int64_t>(piece_rows_ * piece_cols_ * kElement, 1);
    depth_ = std::clamp<int64_t>(kWaitingBytes / bytes, 1, kMost);
  }
  ~StageTurner() {
    for (int64_t i = 0; is_streamed_ && i < depth_; ++i) push({nullptr, nullptr, 0, 0});
  }
  StageTurner(const StageTurner&) = delete;
  StageTurner& operator=(const StageTurner&) = delete;

  void tile(uint8_t* dst, const uint8_t* src) {
    if (!is_streamed_) {
      turn_rows<kElement, kMostLanes>(dst, src, tile_);
      return;
    }
    for (int64_t row = 0; row < tile_.rows; row += piece_rows_) {
      const int64_t rows = std::min(piece_rows_, tile_.rows - row);
      for (int64_t col = 0; col < tile_.cols; col += piece_cols_) {
        push({dst + col * tile_.dst_stride + row * kElement,
              src + row * tile_.src_stride + col * kElement, rows,
              std::min(piece_cols_, tile_.cols - col)});
      }
    }
  }

 private:
  struct Piece {
    uint8_t* dst;
    const uint8_t* src;
    int64_t rows, cols;
  };

  // Turns the piece that has waited longest; meanwhile the lines of the next to wait come.
  void push(const Piece& next) {
    const auto [dst, src, rows, cols] = pieces_[next_];
    pieces_[next_] = next;
    next_ = next_ + 1 == depth_ ? 0 : next_ + 1;
    const int64_t bytes = rows * kElement;
    Lines lines(next.src, next.rows, next.cols * kElement, tile_.src_stride);
    const auto ask = [&lines] { lines.next(); };
    turn_rows<kElement, kMostLanes>(stage_, src, {rows, cols, tile_.src_stride, bytes});
    if (is_dense_ && cols > 0) {
      stream_near(dst, stage_, cols * bytes, ask);
    } else {
      for (int64_t col = 0; col < cols; ++col) {
        stream_near(dst + col * tile_.dst_stride, stage_ + col * bytes, bytes, ask);
      }
    }
    // What the first pieces, behind which there is none yet, did not ask for.
    while (cols == 0 && lines.next()) {
    }
  }

  // Pieces of 256 bytes of each source row, but of bytes 128. With 128 tiles of 8-byte elements
  // were 40 % slower, with 256 those of bytes a quarter; 32 KiB waiting was no better than 16 (two
  // vCPUs of an AMD EPYC, bench/kernels.py --sections transpose).
  static constexpr int64_t kStageBytes = 16 << 10, kLine = 64 / kElement;
  static constexpr int64_t kMostCols = kElement == 1 ? 128 : 256 / kElement;
  static constexpr int64_t kWaitingBytes = 16 << 10, kMost = 8;
  alignas(64) uint8_t stage_[kStageBytes];
  Tile tile_;
  Piece pieces_[kMost] = {};
  int64_t piece_rows_, piece_cols_, depth_, next_ = 0;
  bool is_streamed_, is_dense_;
};

// Whether whole lines of the destination are written: its rows are long and begin on lines, or
// follow each other without a gap.
bool fills_lines(const Tile& tile, int64_t element_bytes) {
  const int64_t line = tile.rows * element_bytes;
  if (line % 16 != 0) return false;
  return tile.dst_stride == line || (line % 64 == 0 && tile.dst_stride % 64 == 0);
}

// Whether every tile of the destination begins on a line.
bool is_on_lines(const uint8_t* dst, const Nest<2>& nest) {
  const auto is_off = [](int64_t bytes) { return bytes % 64 != 0; };
  const auto is_loop_off = [&](const auto& loop) { return is_off(loop.stride[kDst]); };
  const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % 64);
  const auto is_place_off = [&](int64_t offset) { return is_off(first + offset); };
  const int64_t* offsets = nest.offsets[kDst];
  return !is_loop_off(nest.inner) &&
         std::none_of(nest.outer.begin(), nest.outer.end(), is_loop_off) &&
         std::none_of(offsets, offsets + nest.num_offsets, is_place_off);
}

template <typename Turner>
void turn_tiles(Turner&& turner, uint8_t* dst, const uint8_t* src, const Nest<2>& nest,
                const Share& share) {
  nest.walk(share.begin, share.end, [&](const auto& at, int64_t count, int64_t) {
    for (int64_t i = 0; i < count; ++i) {
      turner.tile(dst + at[kDst] + i * nest.inner.stride[kDst],
                  src + at[kSrc] + i * nest.inner.stride[kSrc]);
    }
  });
}

template <int kElement>
void turn_share(uint8_t* dst, const uint8_t* src, const Nest<2>& nest, const Share& share,
                const Tile& tile, bool is_streamed) {
  if (is_streamed && LineTurner<kElement>::suits(tile) && is_on_lines(dst, nest)) {
    turn_tiles(LineTurner<kElement>(tile), dst, src, nest, share);
  } else {
    turn_tiles(StageTurner<kElement>(tile, is_streamed), dst, src, nest, share);
  }
}

}  // namespace
}  // namespace transload

using namespace transload;

extern "C" {

// Tile is (count, destination stride, source stride) of rows, then of columns; loops likewise.
TRANSLOAD_API int32_t transload_transpose_pages(
    uint8_t* dst, const uint8_t* src, const int64_t* dst_offsets, const int64_t* src_offsets,
    int64_t n, int64_t element_bytes, const int64_t* tile, const int64_t* loops, int64_t num_loops,
    int32_t threads) {
  const int64_t* rows = tile;
  const int64_t* cols = tile + 3;
  if (rows[1] != element_bytes || cols[2] != element_bytes) std::swap(rows, cols);
  if (rows[1] != element_bytes || cols[2] != element_bytes) {
    std::vector<int64_t> all(loops, loops + 3 * num_loops);
    all.insert(all.end(), tile, tile + 6);
    return relayout(dst, src, dst_offsets, src_offsets, n, element_bytes, all.data(), num_loops + 2,
                    threads);
  }
  const Tile turned{rows[0], cols[0], rows[2], cols[1]};
  const Nest<2> nest({dst_offsets, src_offsets}, n, {0, 0}, loops, num_loops, Merge::kAny);
  const int64_t total = nest.num_rows() * turned.rows * turned.cols * element_bytes;
  const bool is_streamed = total >= kStreamCallBytes && fills_lines(turned, element_bytes);
  return parallel(num_threads(threads, total), [&](int part, int parts) {
    const Share share(nest.num_rows(), part, parts, 1);
    switch (element_bytes) {
      case 1: return turn_share<1>(dst, src, nest, share, turned, is_streamed);
      case 2: return turn_share<2>(dst, src, nest, share, turned, is_streamed);
      case 4: return turn_share<4>(dst, src, nest, share, turned, is_streamed);
      default: return turn_share<8>(dst, src, nest, share, turned, is_streamed);
    }
  });
}

}  // extern "C"
