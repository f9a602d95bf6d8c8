// Runs pieces of work on the threads that torch already has.
#pragma once

#include <cstdint>
#include <functional>

namespace p3 {

// Calls work(begin, end) over disjoint pieces of [0, size), each of at least `grain`, on up to `threads` threads of the
// OpenMP runtime loaded in this process (torch's); on threads of its own only where there is no such runtime.
// Denormals are flushed to zero inside: the kernels' tails would otherwise spend their time in microcode.
void parallel_for(int64_t size, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& work);

// Where parallel_for takes its threads from: the runtime's file name, or "std::thread".
const char* thread_source();

}  // namespace p3
