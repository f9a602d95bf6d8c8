#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#endif
#if defined(P3_X86)
#include <xmmintrin.h>
#endif

namespace p3 {
namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

struct Runtime {
  GompParallel parallel = nullptr;
  std::string name = "std::thread";
};

// libgomp, libomp and libiomp5 all export GOMP_parallel. The one already loaded is the one torch uses: linking OpenMP
// ourselves could bring a second runtime, whose spinning threads would fight torch's for the cores.
Runtime find_runtime() {
  Runtime found;
#if defined(__linux__)
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        const std::string path = info->dlpi_name;
        const std::string file = path.substr(path.find_last_of('/') + 1);
        for (const char* prefix : {"libgomp", "libomp", "libiomp5"}) {
          if (file.rfind(prefix, 0) == 0) static_cast<std::vector<std::string>*>(data)->push_back(path);
        }
        return 0;
      },
      &paths);
  for (const std::string& path : paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      found.parallel = reinterpret_cast<GompParallel>(dlsym(handle, "GOMP_parallel"));
      if (found.parallel) {
        found.name = path.substr(path.find_last_of('/') + 1);
        break;
      }
    }
  }
#endif
  return found;
}

const Runtime& runtime() {
  static const Runtime found = find_runtime();
  return found;
}

struct FlushDenormals {
#if defined(P3_X86)
  unsigned saved = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(saved | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved); }
#endif
};

struct Job {
  const std::function<void(int64_t, int64_t)>* work;
  int64_t size, piece;
  std::atomic<int64_t> next{0};
};

void run(void* data) {
  Job& job = *static_cast<Job*>(data);
  const FlushDenormals flush;
  for (;;) {
    const int64_t begin = job.next.fetch_add(job.piece);
    if (begin >= job.size) return;
    (*job.work)(begin, std::min(begin + job.piece, job.size));
  }
}

}  // namespace

void parallel_for(int64_t size, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& work) {
  if (size <= 0) return;
  // One contiguous piece a thread, as BLAS splits the rows of a product: what a core wrote it will read.
  const int64_t piece = std::max<int64_t>({grain, (size + threads - 1) / std::max(threads, 1), 1});
  Job job{&work, size, piece};
  const int64_t useful = std::min<int64_t>(threads, (size + piece - 1) / piece);
  if (useful <= 1) {
    run(&job);
  } else if (runtime().parallel) {
    runtime().parallel(run, &job, static_cast<unsigned>(useful), 0);
  } else {
    std::vector<std::thread> others;
    for (int64_t k = 1; k < useful; ++k) others.emplace_back(run, &job);
    run(&job);
    for (std::thread& other : others) other.join();
  }
}

const char* thread_source() { return runtime().name.c_str(); }

}  // namespace p3
