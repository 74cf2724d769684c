// Threads of one call: started for it, gone after it. Nothing outlives a call, so a process may
// fork between calls, and nobody waits busily.
#pragma once

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "vector.h"

namespace transload {

// Fewest bytes worth a thread of their own: from 4 MiB on two threads gained 11 to 25 % (two vCPUs
// of an AMD EPYC, bench/kernels.py --threads). Fewer were not tried.
#if defined(TRANSLOAD_MIN_BYTES_PER_THREAD)  // for tests
constexpr int64_t kMinBytesPerThread = TRANSLOAD_MIN_BYTES_PER_THREAD;
#else
constexpr int64_t kMinBytesPerThread = 2 << 20;
#endif

// Subnormal numbers count whatever the process has set: converters owe them. And whoever wrote past
// the caches lets nobody read before it is in memory.
class Scope {
 public:
#if defined(TRANSLOAD_SSE2)
  Scope() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~Scope() {
    _mm_sfence();
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#endif
};

// The bytes or rows of one of several parts, in whole steps, so that no two threads write one line
// of a long row.
struct Share {
  int64_t begin, end;
  Share(int64_t total, int part, int parts, int64_t step)
      : begin(cut(total, part, parts, step)), end(cut(total, part + 1, parts, step)) {}

 private:
  static int64_t cut(int64_t total, int part, int parts, int64_t step) {
    // A total times a number of threads may be more than 64 bits hold.
    const int64_t whole = total / parts * part + total % parts * part / parts;
    return part == parts ? total : whole / step * step;
  }
};

inline int num_threads(int most, int64_t num_bytes) {
  const int64_t useful = num_bytes / kMinBytesPerThread;
  if (useful <= 1 || most <= 1) return 1;
  return static_cast<int>(useful < most ? useful : most);
}

// What a call returns to Python.
enum Status : int32_t { kDone = 0, kOutOfMemory = 1 };

// Calls work(part, parts) once for every part; on this thread where no other can be had. An
// exception may leave neither a thread nor a call from C.
template <typename Work>
Status parallel(int parts, const Work& work) {
  std::atomic<Status> status{kDone};
  auto run = [&work, &status, parts](int part) {
    [[maybe_unused]] const Scope scope;
    try {
      work(part, parts);
    } catch (const std::exception&) {
      status = kOutOfMemory;  // The one thing that parts throw.
    }
  };
  std::vector<std::thread> threads;
  int started = 1;
  try {
    threads.reserve(static_cast<size_t>(parts));
    for (; started < parts; ++started) threads.emplace_back(run, started);
  } catch (const std::exception&) {
    // Out of threads or memory: the parts that found none are done below.
  }
  run(0);
  for (int part = started; part < parts; ++part) run(part);
  for (auto& thread : threads) thread.join();
  return status;
}

}  // namespace transload
