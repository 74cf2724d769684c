// convert_rows: numbers from format to format, through binary32 in the first-level cache.
#include <numeric>

#include "nest.h"
#include "rows.h"
#include "scales.h"
#include "stream.h"
#include "threads.h"

namespace transload {
namespace {

// One side as Python gives it: see kernels.py.
struct Format {
  int64_t element, scale, group_elements, group_stride;
  double scale_value;
};

struct Numbers {
  Element element;
  ScaleKind kind;
  int64_t group, group_stride;
  float factor;

  explicit Numbers(const Format& format)
      : element(static_cast<Element>(format.element)),
        kind(static_cast<ScaleKind>(format.scale)),
        group(format.group_elements),
        group_stride(format.group_stride),
        factor(static_cast<float>(format.scale_value)) {}

  bool is_inline() const { return kind != ScaleKind::kNone && kind != ScaleKind::kTensor; }
  int64_t bytes(int64_t num_elements) const { return num_elements * bits_per_element(element) / 8; }
};

// Elements that are converted together, about: their binary32s and what becomes of them stay in the
// first-level cache.
constexpr int64_t kPieceElements = 1024;

class Converter {
 public:
  Converter(const Numbers& src, const Numbers& dst, int64_t num_elements, bool is_streamed)
      : src_(src), dst_(dst), num_elements_(num_elements), is_streamed_(is_streamed) {
    // Whole groups of the destination, whose scale is made of all their values, and whole bytes.
    const int64_t step = dst.is_inline() ? std::lcm(dst.group, int64_t{2}) : 2;
    piece_ = std::min(num_elements, std::max(step, kPieceElements / step * step));
    values_.resize(static_cast<size_t>(piece_));
    if (is_streamed_) stage_.resize(static_cast<size_t>(dst.bytes(piece_)) + 64);
  }

  void row(uint8_t* dst, const uint8_t* src, uint8_t* dst_scales, const uint8_t* src_scales) {
    for (int64_t first = 0; first < num_elements_; first += piece_) {
      const int64_t n = std::min(piece_, num_elements_ - first);
      decode(src_.element, values_.data(), src + src_.bytes(first), n);
      read_scales(src_scales, first, n);
      write_scales(dst_scales, first, n);
      uint8_t* to = dst + dst_.bytes(first);
      if (!is_streamed_) {
        encode(dst_.element, to, values_.data(), n);
      } else {
        encode(dst_.element, stage_.data(), values_.data(), n);
        stream_copy(to, stage_.data(), dst_.bytes(n));
      }
    }
  }

 private:
  void read_scales(const uint8_t* scales, int64_t first, int64_t n) {
    if (src_.kind == ScaleKind::kTensor) {
      apply({src_.factor, 0.0f}, src_.kind, values_.data(), n);
    } else if (src_.is_inline()) {
      each_group(src_, first, n, [&](int64_t group, int64_t at, int64_t count) {
        const uint8_t* scale = scales + group * src_.group_stride;
        apply(read_scale(src_.kind, scale), src_.kind, values_.data() + at, count);
      });
    }
  }

  void write_scales(uint8_t* scales, int64_t first, int64_t n) {
    if (dst_.kind == ScaleKind::kTensor) {
      remove({dst_.factor, 0.0f}, dst_.kind, values_.data(), n);
    } else if (dst_.is_inline()) {
      each_group(dst_, first, n, [&](int64_t group, int64_t at, int64_t count) {
        float* values = values_.data() + at;
        const Scale scale = make_scale(dst_.kind, dst_.element, values, count);
        write_scale(dst_.kind, scale, scales + group * dst_.group_stride);
        remove(scale, dst_.kind, values, count);
      });
    }
  }

  // Calls part(group, first value in the piece, how many) for what of each group is in a piece.
  template <typename Part>
  static void each_group(const Numbers& side, int64_t first, int64_t n, const Part& part) {
    for (int64_t at = 0; at < n;) {
      const int64_t group = (first + at) / side.group;
      const int64_t count = std::min((group + 1) * side.group - first - at, n - at);
      part(group, at, count);
      at += count;
    }
  }

  Numbers src_, dst_;
  int64_t num_elements_, piece_;
  bool is_streamed_;
  std::vector<float> values_;
  std::vector<uint8_t> stage_;
};

}  // namespace
}  // namespace transload

using namespace transload;

extern "C" {

// Loops are (count, destination stride, source stride, destination scales' stride, source
// scales'); the scale pointers lie behind the buffers' own by what a row's first scale does.
TRANSLOAD_API int32_t transload_convert_rows(uint8_t* dst, const uint8_t* src, uint8_t* dst_scales,
                                             const uint8_t* src_scales, const int64_t* dst_offsets,
                                             const int64_t* src_offsets, int64_t n,
                                             int64_t num_elements, const int64_t* loops,
                                             int64_t num_loops, const Format* src_format,
                                             const Format* dst_format, int32_t threads) {
  [[maybe_unused]] const Scope scope;  // A scale may be subnormal, too.
  const Numbers from(*src_format), to(*dst_format);
  const bool is_inline = from.is_inline() || to.is_inline();
  const Nest<4> nest({dst_offsets, src_offsets, dst_offsets, src_offsets}, n,
                     {to.bytes(num_elements), from.bytes(num_elements), 0, 0}, loops, num_loops,
                     is_inline ? Merge::kKeep : Merge::kAny);
  const int64_t row_elements = num_elements * nest.rows_merged;
  const int64_t written = nest.num_rows() * nest.row_bytes[kDst];
  const int64_t read = nest.num_rows() * nest.row_bytes[kSrc];
  const bool is_streamed = written >= kStreamCallBytes && nest.row_bytes[kDst] >= kStreamRunBytes;
  return parallel(num_threads(threads, std::max(written, read)), [&](int part, int parts) {
    Converter converter(from, to, row_elements, is_streamed);
    const Share share(nest.num_rows(), part, parts, 1);
    nest.walk(share.begin, share.end, [&](Nest<4>::Sides at, int64_t count, int64_t) {
      for (int64_t i = 0; i < count; ++i) {
        converter.row(dst + at[kDst], src + at[kSrc], dst_scales + at[kDstScale],
                      src_scales + at[kSrcScale]);
        for (size_t side = 0; side < 4; ++side) at[side] += nest.inner.stride[side];
      }
    });
  });
}

}  // extern "C"
