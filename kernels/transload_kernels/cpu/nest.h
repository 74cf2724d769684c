// Rows under nested loops: (offsets, indices of the loops) -> one address on each side.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace transload {

// Which side a stride or an offset belongs to; converters have scales on either.
enum Side { kDst = 0, kSrc = 1, kDstScale = 2, kSrcScale = 3 };

// What a nest may change about the loops it was given. kKeep: nothing but their number. kOrdered:
// rows that follow on from each other become one. kAny: also the order.
enum class Merge { kKeep, kOrdered, kAny };

// Rows as long as a line and longer are best read in sequence, since stores past the caches wait
// for nobody wherever they go; shorter ones are best written in sequence, to fill lines.
// Rows of 512 bytes of 32 layers, token by token: 0.84 of a flat copy read in sequence, 0.64
// written in sequence (two vCPUs of an AMD EPYC, bench/kernels.py --sections relayout).
constexpr int64_t kReadInSequenceBytes = 64;

template <int kSides>
struct Nest {
  using Sides = std::array<int64_t, kSides>;
  struct Loop {
    int64_t count;
    Sides stride;
  };

  std::array<const int64_t*, kSides> offsets;
  int64_t num_offsets;
  Sides row_bytes;
  std::vector<Loop> outer;
  Loop inner{1, {}};
  int64_t rows_per_offset = 1;
  int64_t rows_merged = 1;

  // Loops are (count, one stride for each side), outermost first.
  Nest(std::array<const int64_t*, kSides> at, int64_t n, Sides bytes, const int64_t* loops,
       int64_t num_loops, Merge merge)
      : offsets(at), num_offsets(n), row_bytes(bytes) {
    for (int64_t i = 0; i < num_loops; ++i) {
      Loop loop{*loops++, {}};
      for (int64_t& stride : loop.stride) stride = *loops++;
      rows_per_offset *= loop.count;
      if (loop.count != 1) outer.push_back(loop);
    }
    if (rows_per_offset == 0) {
      outer.clear();
      return;
    }
    if (merge != Merge::kKeep) merge_rows(merge == Merge::kAny);
    if (merge == Merge::kAny) sort_loops();
    merge_loops();
    if (!outer.empty()) {
      inner = outer.back();
      outer.pop_back();
    }
  }

  int64_t num_rows() const { return num_offsets * rows_per_offset; }

  // Calls strip(places, count, row) for the rows [begin, end): places are the byte offsets of the
  // first of count rows that follow each other by the inner loop's strides.
  template <typename Strip>
  void walk(int64_t begin, int64_t end, const Strip& strip) const {
    if (begin >= end) return;
    std::vector<int64_t> index(outer.size());
    int64_t block = begin / rows_per_offset;
    int64_t first = begin % rows_per_offset % inner.count;
    int64_t rest = begin % rows_per_offset / inner.count;
    Sides step{};
    for (size_t at = outer.size(); at-- > 0;) {
      index[at] = rest % outer[at].count;
      rest /= outer[at].count;
      add(step, outer[at].stride, index[at]);
    }
    for (int64_t row = begin; row < end;) {
      const int64_t count = std::min(inner.count - first, end - row);
      Sides places = step;
      add(places, inner.stride, first);
      for (int side = 0; side < kSides; ++side) places[side] += offsets[side][block];
      strip(places, count, row);
      row += count;
      first = 0;
      block += advance(index, step);
    }
  }

  // The same in bytes of the rows' sequence, [begin, end): strip(places, row bytes, count, byte).
  // Sides count bytes alike here.
  template <typename Strip>
  void walk_bytes(int64_t begin, int64_t end, const Strip& strip) const {
    if (begin >= end) return;
    const int64_t size = row_bytes[kDst];
    const auto piece = [&](int64_t row, int64_t from, int64_t to) {
      walk(row, row + 1, [&](Sides places, int64_t, int64_t) {
        for (int64_t& place : places) place += from;
        strip(places, to - from, 1, row * size + from);
      });
    };
    int64_t row = begin / size;
    const int64_t last = end / size, from = begin % size, to = end % size;
    if (row == last) {
      piece(row, from, to);
      return;
    }
    if (from > 0) piece(row++, from, size);
    walk(row, last, [&](const Sides& places, int64_t count, int64_t at) {
      strip(places, size, count, at * size);
    });
    if (to > 0) piece(last, 0, to);
  }

 private:
  static void add(Sides& places, const Sides& stride, int64_t times) {
    for (int side = 0; side < kSides; ++side) places[side] += stride[side] * times;
  }

  // The next indices of the outer loops; 1 where they begin anew, with the next offset.
  int64_t advance(std::vector<int64_t>& index, Sides& step) const {
    for (size_t at = outer.size(); at-- > 0;) {
      if (++index[at] < outer[at].count) {
        add(step, outer[at].stride, 1);
        return 0;
      }
      index[at] = 0;
      add(step, outer[at].stride, 1 - outer[at].count);
    }
    return 1;
  }

  void merge_rows(bool in_any_order) {
    for (size_t at = outer.size(); at-- > 0;) {
      const Loop loop = outer[at];
      if (loop.stride == row_bytes) {
        for (int64_t& bytes : row_bytes) bytes *= loop.count;
        rows_merged *= loop.count;
        rows_per_offset /= loop.count;
        outer.erase(outer.begin() + static_cast<int64_t>(at));
        at = outer.size();
      } else if (!in_any_order) {
        return;
      }
    }
  }

  void sort_loops() {
    const size_t by = kSides > 1 && row_bytes[kDst] >= kReadInSequenceBytes ? kSrc : kDst;
    std::stable_sort(outer.begin(), outer.end(), [by](const Loop& a, const Loop& b) {
      return std::abs(a.stride[by]) > std::abs(b.stride[by]);
    });
  }

  void merge_loops() {
    for (size_t at = outer.size(); at-- > 1;) {
      Loop& around = outer[at - 1];
      const Loop& within = outer[at];
      Sides reach{};
      add(reach, within.stride, within.count);
      if (around.stride != reach) continue;
      around = {around.count * within.count, within.stride};
      outer.erase(outer.begin() + static_cast<int64_t>(at));
    }
  }
};

}  // namespace transload
