// Rows that lie apart, as keys do in cells of keys and values, turned in registers and from there
// past the caches, a whole line of the destination at a time and without a stage. 2-byte keys of 16
// and 32 tokens took 1.4 times as long with one, of 128 tokens 1.2 times.
//
// What such rows can be read at is up to the processor's prefetchers, which seem to follow the
// strides of single instructions. So rows are asked for ahead by sixteen of them, each of which
// goes on by one stride throughout: unrolled, in loops that are not. By one instruction in a loop,
// or by one for each line of a piece, the same took 1.3 to 1.5 times as long; so did asking for 32
// lines at once.
//
// All on two vCPUs of an AMD EPYC with AVX-512, bench/kernels.py --sections transpose.
#pragma once

#include "tiles.h"

namespace transload {

template <int kElement>
class LineTurner {
 public:
  explicit LineTurner(const Tile& tile) : tile_(tile), is_half_(tile.rows * kElement < kLine) {}
  ~LineTurner() { push(nullptr, nullptr); }
  LineTurner(const LineTurner&) = delete;
  LineTurner& operator=(const LineTurner&) = delete;

  // Whether tiles that begin on lines of the destination are better off here. Not so square ones of
  // 1 KiB a row, which took 1.2 to 1.3 times as long (those of bytes a sixth less, but only there),
  // nor rows of 512 bytes in cells of 1 KiB, which were no faster.
  static bool suits(const Tile& tile) {
    if (kMostLanes < 4 || tile.cols * kElement != kRowBytes) return false;
    if (tile.src_stride % 512 != 0 || tile.src_stride < 2 * kRowBytes) return false;
    const int64_t bytes = tile.rows * kElement;
    if (bytes == kLine / 2) return tile.dst_stride == bytes;  // Two fill a line.
    return bytes % kLine == 0 && tile.dst_stride % kLine == 0;
  }

  void tile(uint8_t* dst, const uint8_t* src) {
    constexpr int64_t kRows = kLine / kElement;
    for (int64_t row = 0; row < tile_.rows; row += kRows) {
      push(dst + row * kElement, src + row * tile_.src_stride);
    }
  }

 private:
  // Turns the piece that came before this one, which is asked for meanwhile.
  void push(uint8_t* dst, const uint8_t* src) {
    if constexpr (kMostLanes == 4) {
      if (src_ != nullptr) {
        const uint8_t* ahead = src != nullptr ? src : src_;
        is_half_ ? turn<2>(ahead) : turn<4>(ahead);
      }
    }
    dst_ = dst;
    src_ = src;
  }

  template <int kLanes>
  void turn(const uint8_t* ahead) const {
    constexpr int kWide = 16 / kElement, kTiles = kRowBytes / 16;
    constexpr int kTurns = kWide * kLanes / kRowsAsked;
    uint8_t* dst = dst_;
    const uint8_t* src = src_;
#pragma GCC unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      ask(ahead);
      ahead += kRowsAsked * tile_.src_stride;
#pragma GCC unroll 1
      for (int tile = 0; tile < kTiles / kTurns; ++tile) {
        stream_tile<kElement, kLanes>(dst, src, tile_.dst_stride, tile_.src_stride);
        dst += kWide * tile_.dst_stride;
        src += 16;
      }
    }
  }

  void ask(const uint8_t* rows) const {
#pragma GCC unroll 16
    for (int line = 0; line < kRowsAsked * kLinesOfRow; ++line) {
      prefetch_once(rows + line / kLinesOfRow * tile_.src_stride + line % kLinesOfRow * kLine);
    }
  }

  static constexpr int64_t kLine = 64, kRowBytes = 256;
  static constexpr int kLinesOfRow = kRowBytes / kLine, kRowsAsked = 4;
  Tile tile_;
  bool is_half_;
  uint8_t* dst_ = nullptr;
  const uint8_t* src_ = nullptr;
};

}  // namespace transload
