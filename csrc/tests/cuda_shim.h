// A GPU's execution model for an ordinary compiler, so that the bodies of csrc/cuda run where there is no GPU.
//
// A block's threads are real threads with P3_SHIM_THREADS (for ThreadSanitizer and AddressSanitizer, which then see
// every missing barrier and every stray access), and otherwise fibers of one thread, which are quick. Both keep the
// rules of a GPU: a barrier is for all threads of a block, a shuffle for all lanes of a warp; shared memory begins as
// NaN and has exactly the size that was asked for. Blocks run one after the other.
#pragma once

#if !defined(P3_SHIM_THREADS)
#undef _FORTIFY_SOURCE  // its longjmp refuses to leave one fiber's stack for another's
#endif
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#if defined(P3_SHIM_THREADS)
#include <condition_variable>
#include <mutex>
#include <thread>
#else
#include <setjmp.h>
#include <ucontext.h>
#endif

#define P3_DEVICE inline

struct alignas(16) float4 {
  float x, y, z, w;
};

namespace p3 {
namespace cuda {
namespace shim {

#if defined(P3_SHIM_THREADS)

class Barrier {
 public:
  explicit Barrier(int count) : count_(count), waiting_(0), round_(0) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++waiting_ == count_) {
      waiting_ = 0;
      ++round_;
      all_.notify_all();
      return;
    }
    all_.wait(lock, [&] { return round_ != round; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  int count_, waiting_, round_;
};

class Threads {
 public:
  static void run(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int index = 0; index < count; ++index) threads.emplace_back(body, index);
    for (std::thread& thread : threads) thread.join();
  }
};

#else

// Fibers, each running until it waits; a round of the scheduler gives every fiber that may run its turn. A context begins
// a fiber and jumps change between them: swapcontext would ask the kernel for the signal mask each time. What calls setjmp
// is not inlined: nothing of the kernel around it would stay in registers.
class Threads {
 public:
  static constexpr size_t kStack = 128 * 1024;

  static void run(int count, const std::function<void(int)>& body) {
    Threads all(count, body);
    current() = &all;
    all.schedule();
    current() = nullptr;
  }
  static Threads*& current() {
    static thread_local Threads* running = nullptr;
    return running;
  }
  __attribute__((noinline)) void pause() {
    if (_setjmp(fibers_[at_].at) == 0) _longjmp(scheduler_, 1);
  }

 private:
  struct Fiber {
    ucontext_t context;
    jmp_buf at;
    bool begun = false, done = false;
  };

  Threads(int count, const std::function<void(int)>& body) : fibers_(static_cast<size_t>(count)), body_(body) {
    for (size_t index = 0; index < fibers_.size(); ++index) {
      ucontext_t& context = fibers_[index].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stack(index);
      context.uc_stack.ss_size = kStack;
      context.uc_link = nullptr;
      makecontext(&context, &Threads::start, 0);
    }
  }
  // Kept for the next launch: fresh ones are fresh pages.
  static char* stack(size_t index) {
    static thread_local std::vector<std::unique_ptr<char[]>> stacks;
    while (stacks.size() <= index) stacks.emplace_back(new char[kStack]);
    return stacks[index].get();
  }
  static void start() {
    Threads* all = current();
    all->body_(static_cast<int>(all->at_));
    all->fibers_[all->at_].done = true;
    _longjmp(all->scheduler_, 1);
  }
  __attribute__((noinline)) void resume(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }
  void schedule() {
    for (size_t left = fibers_.size(); left > 0;) {
      for (at_ = 0; at_ < fibers_.size(); ++at_) {
        if (fibers_[at_].done) continue;
        resume(fibers_[at_]);
        if (fibers_[at_].done) --left;
      }
    }
  }

  std::vector<Fiber> fibers_;
  const std::function<void(int)>& body_;
  jmp_buf scheduler_;
  size_t at_ = 0;
};

class Barrier {
 public:
  explicit Barrier(int count) : count_(count), waiting_(0), round_(0) {}
  void wait() {
    const int round = round_;
    if (++waiting_ == count_) {
      waiting_ = 0;
      ++round_;
      return;
    }
    for (int turns = 0; round_ == round; ++turns) {
      if (turns > 1000000) {
        std::fprintf(stderr, "cuda_shim: a barrier that not all threads reach\n");
        std::abort();
      }
      Threads::current()->pause();
    }
  }

 private:
  int count_, waiting_, round_;
};

#endif

struct Warp {
  Warp() : barrier(kWarp) {}
  Barrier barrier;
  float lanes[kWarp];
};

struct Block {
  Block(int threads, int64_t shared_floats)
      : barrier(threads), warps(static_cast<size_t>(threads / kWarp)), shared(new float[shared_floats]) {
    for (auto& warp : warps) warp.reset(new Warp);
  }
  Barrier barrier;
  std::vector<std::unique_ptr<Warp>> warps;
  std::unique_ptr<float[]> shared;
};

inline int64_t& launches() {
  static int64_t count = 0;
  return count;
}

}  // namespace shim

struct Thread {
  int index;
  int64_t block;
  float* shared;
  shim::Block* owner;

  void sync() const { owner->barrier.wait(); }
  float shuffle_xor(float value, int mask) const {
    shim::Warp& warp = *owner->warps[static_cast<size_t>(index / kWarp)];
    warp.lanes[index % kWarp] = value;
    warp.barrier.wait();
    const float other = warp.lanes[(index % kWarp) ^ mask];
    warp.barrier.wait();  // before a lane writes again
    return other;
  }
};

template <class Kernel>
void launch(const Target&, int64_t blocks, int64_t shared_bytes, const typename Kernel::Arguments& arguments) {
  static_assert(Kernel::kThreads % kWarp == 0, "whole warps");
  if (blocks == 0) return;
  ++shim::launches();
  const int64_t floats = shared_bytes / static_cast<int64_t>(sizeof(float));
  shim::Block owner(Kernel::kThreads, floats);
  shim::Threads::run(Kernel::kThreads, [&](int index) {
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = index; i < floats; i += Kernel::kThreads) {
        owner.shared[i] = std::numeric_limits<float>::quiet_NaN();
      }
      owner.barrier.wait();
      Kernel::run(Thread{index, block, owner.shared.get(), &owner}, arguments);
      owner.barrier.wait();
    }
  });
}

// An H100's.
inline Limits device_limits(int) { return {132, 227 * 1024}; }

}  // namespace cuda
}  // namespace p3
