// Launches: which kernel, how many blocks, how much shared memory.
#include "kernels.h"

#include <stdexcept>

#include "actor.h"

namespace p3 {
namespace cuda {

#if defined(__CUDACC__)
const char* const kRunsOn = "cuda";
#else
const char* const kRunsOn = "cpu";
#endif

Limits limits_of(int device) { return device_limits(device); }

void activation_moments_forward(const Target& target, ActivationOf activation, Input mean, Input var, Input shift,
                                int64_t period, Output out_mean, Output out_var, int64_t n) {
  Elementwise<ActivationMomentsForward>::start(target, {activation, mean, var, shift, period, out_mean, out_var, n});
}

void activation_moments_backward(const Target& target, ActivationOf activation, Input mean, Input var, Input shift,
                                 int64_t period, Input d_out_mean, Input d_out_var, Output d_mean, Output d_var,
                                 Output out_mean, Output out_var, int64_t n) {
  Elementwise<ActivationMomentsBackward>::start(target, {activation, mean, var, shift, period, d_out_mean, d_out_var,
                                                         d_mean, d_var, out_mean, out_var, n});
}

void activation_forward(const Target& target, ActivationOf activation, Input x, Input shift, int64_t period,
                        Output out, int64_t n) {
  Elementwise<ActivationForward>::start(target, {activation, x, shift, period, out, n});
}

void activation_backward(const Target& target, ActivationOf activation, Input out, Input d_out, Output d_x,
                         int64_t n) {
  Elementwise<ActivationBackward>::start(target, {activation, out, d_out, d_x, n});
}

template <class Kernel>
static void start_rows(const Target& target, int64_t rows, const typename Kernel::Arguments& arguments) {
  launch<Kernel>(target, blocks_for(rows, Kernel::kRows), 0, arguments);
}

void mixture_log_prob_forward(const Target& target, const Mixture& mixture, float* log_sum) {
  start_rows<MixtureForward>(target, mixture.rows, {mixture, log_sum});
}

void mixture_log_prob_backward(const Target& target, const Mixture& mixture, const float* log_sum,
                               const float* d_log_sum, Output d_means, float* d_action, float* d_std, bool add) {
  start_rows<MixtureBackward>(target, mixture.rows, {mixture, log_sum, d_log_sum, d_means, d_action, d_std, add});
}

void gaussian_head_forward(const Target& target, const Head& head, float* log_prob, float* entropy, float* kl) {
  start_rows<GaussianHeadForward>(target, head.rows, {head, log_prob, entropy, kl});
}

void gaussian_head_backward(const Target& target, const Head& head, const float* d_log_prob, const float* d_entropy,
                            const float* d_kl, Output d_action, Output d_mean, Output d_var, float* d_std) {
  start_rows<GaussianHeadBackward>(target, head.rows,
                                   {head, d_log_prob, d_entropy, d_kl, d_action, d_mean, d_var, d_std});
}

void normal(const Target& target, Seed seed, uint32_t stream, int64_t first_sample, int64_t samples, int64_t first_row,
            const int64_t* row_numbers, int64_t rows, int64_t columns, float* out) {
  const int64_t counters = samples * rows * ((columns + 3) / 4);
  Elementwise<Normal>::start(target, {seed, stream, first_sample, first_row, row_numbers, rows, columns, out, counters});
}

void latent_backward(const Target& target, const float* d, int64_t d_columns, const float* noise, float* d_mean,
                     float* d_std, int64_t samples, int64_t rows, int64_t columns) {
  Elementwise<LatentBackward>::start(
      target, {d, d_columns, noise, d_mean, d_std, samples, rows, columns, rows * columns});
}

// ---- A whole network ------------------------------------------------------------------------------------------

using SmallTile = Tile<8>;
using LargeTile = Tile<16>;

static int64_t moments_bytes(const Network& network, int tile) {
  return int64_t{sizeof(float)} * (tile == LargeTile::kRows ? MlpMoments<LargeTile, float>::shared_floats(network)
                                                            : MlpMoments<SmallTile, float>::shared_floats(network));
}

static int64_t actions_bytes(const Network& network, int context, int tile) {
  return int64_t{sizeof(float)} *
         (tile == LargeTile::kRows ? MlpActions<LargeTile, float>::shared_floats(network, context)
                                   : MlpActions<SmallTile, float>::shared_floats(network, context));
}

// A small tile takes a block nearly as many instructions as a large one (python -m p3kernels.cuda.issue_slots), so it
// pays where every multiprocessor has at most one block of it.
template <class Bytes>
static int choose_tile(int64_t rows, const Limits& limits, Bytes bytes) {
  const bool few = blocks_for(rows, SmallTile::kRows) <= limits.processors;
  if (!few && bytes(LargeTile::kRows) <= limits.shared_bytes) return LargeTile::kRows;
  return bytes(SmallTile::kRows) <= limits.shared_bytes ? SmallTile::kRows : 0;
}

int64_t moments_shared_bytes(const Network& network, int tile) { return moments_bytes(network, tile); }
int64_t actions_shared_bytes(const Network& network, int context_columns, int tile) {
  return actions_bytes(network, context_columns, tile);
}

int moments_tile(const Network& network, int64_t rows, const Limits& limits) {
  return choose_tile(rows, limits, [&](int tile) { return moments_bytes(network, tile); });
}

int actions_tile(const Network& network, int context_columns, int64_t rows, const Limits& limits) {
  return choose_tile(rows, limits, [&](int tile) { return actions_bytes(network, context_columns, tile); });
}

// Calls start(Kernel with the tile and the type of the weights).
template <template <class, class> class Kernel, class Start>
static void with_kernel(int tile, bool bf16, Start start) {
  if (tile == LargeTile::kRows) {
    bf16 ? start(Kernel<LargeTile, Bf16>()) : start(Kernel<LargeTile, float>());
  } else if (tile == SmallTile::kRows) {
    bf16 ? start(Kernel<SmallTile, Bf16>()) : start(Kernel<SmallTile, float>());
  } else {
    throw std::invalid_argument("the network does not fit in shared memory");
  }
}

void mlp_moments(const Target& target, const Network& network, Input mean, Input var, int stochastic, int64_t rows,
                 float* out_mean, float* out_var) {
  const int tile = moments_tile(network, rows, limits_of(target.device));
  with_kernel<MlpMoments>(tile, network.bf16, [&](auto kernel) {
    launch<decltype(kernel)>(target, blocks_for(rows, tile), moments_bytes(network, tile),
                             {network, mean, var, stochastic, rows, out_mean, out_var});
  });
}

void mlp_actions(const Target& target, const Network& network, const Sampled& sampled, const Likelihood& likelihood,
                 float* means) {
  const int tile = actions_tile(network, sampled.context_columns, sampled.rows, limits_of(target.device));
  with_kernel<MlpActions>(tile, network.bf16, [&](auto kernel) {
    launch<decltype(kernel)>(target, blocks_for(sampled.rows, tile),
                             actions_bytes(network, sampled.context_columns, tile),
                             {network, sampled, likelihood, means});
  });
}

}  // namespace cuda
}  // namespace p3
