// The rows that other operations fall back to.
#pragma once

#include <cstdint>

#include "threads.h"

#define TRANSLOAD_API __attribute__((visibility("default")))

namespace transload {

// Loops are (count, destination stride, source stride).
Status relayout(uint8_t* dst, const uint8_t* src, const int64_t* dst_offsets,
                const int64_t* src_offsets, int64_t n, int64_t row_bytes, const int64_t* loops,
                int64_t num_loops, int32_t threads);

}  // namespace transload
