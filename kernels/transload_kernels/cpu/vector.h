// Which vectors there are. TRANSLOAD_PORTABLE leaves out all that is one processor's own, so that
// what other processors run can be tested on any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__) && !defined(TRANSLOAD_PORTABLE)
#define TRANSLOAD_SSE2 1
#include <immintrin.h>
#if defined(__AVX2__)
#define TRANSLOAD_AVX2 1
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define TRANSLOAD_AVX512 1
#endif
#endif
