// The CUDA kernels' flat interface: device addresses, sizes, a stream; no torch. Tensors are contiguous unless a stride
// is named. Every function is one launch, asynchronous on the stream.
#pragma once

#include <cstdint>

#include "../activation.h"

namespace p3 {
namespace cuda {

struct Input {
  const void* data;  // float32, or bfloat16 if `bf16`; null where a tensor is left out
  bool bf16;
};
struct Output {
  void* data;
  bool bf16;
};

struct Target {
  int device;
  void* stream;  // a cudaStream_t
};

// What the choice of a tile depends on.
struct Limits {
  int processors;
  int shared_bytes;  // for one block
};
Limits limits_of(int device);
extern const char* const kRunsOn;  // the kind of torch device whose memory the kernels read

struct ActivationOf {
  Activation kind;
  float parameter;
};

// out [n] = moments of activation(x), x ~ N(mean + shift, var); shift [period], or null, is repeated.
void activation_moments_forward(const Target&, ActivationOf, Input mean, Input var, Input shift, int64_t period,
                                Output out_mean, Output out_var, int64_t n);
// out_mean and out_var, the forward values again, may be null; d_mean and d_var may be d_out_mean and d_out_var.
void activation_moments_backward(const Target&, ActivationOf, Input mean, Input var, Input shift, int64_t period,
                                 Input d_out_mean, Input d_out_var, Output d_mean, Output d_var, Output out_mean,
                                 Output out_var, int64_t n);
// out [n] = activation(x + shift), in place allowed; and d_x from the activation's output.
void activation_forward(const Target&, ActivationOf, Input x, Input shift, int64_t period, Output out, int64_t n);
void activation_backward(const Target&, ActivationOf, Input out, Input d_out, Output d_x, int64_t n);

// action [B, A], means [N, B, A], std [A] or [B, A] (std_stride 0 or A) -> log_sum [B], less `offset`.
struct Mixture {
  Input action, means, std;
  int64_t std_stride;
  int64_t samples, rows, actions;
  float offset;
};
void mixture_log_prob_forward(const Target&, const Mixture&, float* log_sum);
// d_means may be means; d_action and d_std [B, A] float32 are written, or added to if `add`.
void mixture_log_prob_backward(const Target&, const Mixture&, const float* log_sum, const float* d_log_sum,
                               Output d_means, float* d_action, float* d_std, bool add);

// The head of a Gaussian policy N(mean, var + std^2): action, mean, var, old_mean, old_std [B, A], std [A] or [B, A].
struct Head {
  Input action, mean, var, std, old_mean, old_std;
  int64_t std_stride;
  int64_t rows, actions;
};
// log_prob, entropy and KL(old | new), [B] each.
void gaussian_head_forward(const Target&, const Head&, float* log_prob, float* entropy, float* kl);
// Gradients [B, A], from those of the three.
void gaussian_head_backward(const Target&, const Head&, const float* d_log_prob, const float* d_entropy,
                            const float* d_kl, Output d_action, Output d_mean, Output d_var, float* d_std);

// Noise. The seed is read from device memory if `device_seed`, so that a captured graph draws anew at every replay.
struct Seed {
  uint64_t value;
  const int64_t* device_seed;
};
// out [samples, rows, columns] float32. Row r has the number row_numbers[r], or first_row + r where that is null.
void normal(const Target&, Seed, uint32_t stream, int64_t first_sample, int64_t samples, int64_t first_row,
            const int64_t* row_numbers, int64_t rows, int64_t columns, float* out);
// d [samples, rows, d_columns], of which the first `columns` count, noise [samples, rows, columns]; d_mean and d_std
// [rows, columns] are added to.
void latent_backward(const Target&, const float* d, int64_t d_columns, const float* noise, float* d_mean, float* d_std,
                     int64_t samples, int64_t rows, int64_t columns);

// A whole network in one launch.
constexpr int kMostLayers = 8;
struct Network {
  const void* weights[kMostLayers];  // [O, I]
  Input biases[kMostLayers];         // [O] or null
  int32_t widths[kMostLayers + 1];
  int32_t layers;
  bool bf16;  // the weights, all of them
  ActivationOf activation;
  bool activate_last;
};
// Rows a block takes, or 0 where the activations of even a small block do not fit in shared memory.
int moments_tile(const Network&, int64_t rows, const Limits&);
int actions_tile(const Network&, int context_columns, int64_t rows, const Limits&);
int64_t moments_shared_bytes(const Network&, int tile);
int64_t actions_shared_bytes(const Network&, int context_columns, int tile);

// mean [B, I], var [B, J], J <= I, the last J inputs being stochastic -> [B, O] twice.
void mlp_moments(const Target&, const Network&, Input mean, Input var, int stochastic, int64_t rows, float* out_mean,
                 float* out_var);

// The network at [context, latent_mean + latent_std * noise], sample after sample.
struct Sampled {
  Input context;                   // [B, C]
  Input latent_mean, latent_std;   // [B, Z]; without a std the latent is its mean
  Input noise;                     // [N, B, Z], or null: drawn from the seed
  Seed seed;
  const int64_t* row_numbers;  // [B], or null: a row's noise is that of its place
  int64_t half;  // samples from here on mirror those from 0 on; at least `samples` where none does
  int context_columns, latent_columns;
  int64_t samples, rows;
};
// means [N, B, A], if not null.
// log_prob [B], if not null: log sum_i N(action | means_i, std^2), less `offset`.
struct Likelihood {
  Input action, std;
  int64_t std_stride;
  float offset;
  float* log_prob;
};
void mlp_actions(const Target&, const Network&, const Sampled&, const Likelihood&, float* means);

}  // namespace cuda
}  // namespace p3
