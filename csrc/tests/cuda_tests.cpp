// The bodies of csrc/cuda on real threads, meant for sanitizers: a missing barrier is a race that ThreadSanitizer sees,
// an index beyond a buffer is one that AddressSanitizer sees. Truth is the same in float64, without tiles or threads.
#include "../cuda/kernels.cu"

#include <algorithm>
#include <string>

namespace {

using namespace p3::cuda;
using p3::Activation;

int failures = 0;

void check(bool condition, const std::string& what) {
  if (condition) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// Exactly n elements on the heap, so that a sanitizer sees any access beyond them; bfloat16 on request.
struct Buffer {
  explicit Buffer(int64_t n, bool half = false)
      : size(n), bf16(half), floats(new float[bf16 ? 0 : n]), halves(new uint16_t[bf16 ? n : 0]) {
    for (int64_t i = 0; i < n; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
  }
  void set(int64_t i, float value) {
    if (bf16) {
      halves[i] = to_bf16(value);
    } else {
      floats[i] = value;
    }
  }
  double operator[](int64_t i) const { return bf16 ? from_bf16(halves[i]) : floats[i]; }
  void* data() const { return bf16 ? static_cast<void*>(halves.get()) : floats.get(); }
  Input in() const { return {data(), bf16}; }
  Output out() const { return {data(), bf16}; }
  float* raw() const { return floats.get(); }
  int64_t size;
  bool bf16;
  std::unique_ptr<float[]> floats;
  std::unique_ptr<uint16_t[]> halves;
};

const Target kHere{0, nullptr};
const ActivationOf kElu{Activation::kElu, 1.3f};
const Input kNone{nullptr, false};
const Output kNowhere{nullptr, false};

uint32_t state = 12345;
float uniform() {  // (0, 1)
  state = state * 1664525u + 1013904223u;
  return (static_cast<float>(state >> 8) + 0.5f) / 16777216.0f;
}
Buffer random(int64_t n, float low, float high, bool bf16 = false) {
  Buffer buffer(n, bf16);
  for (int64_t i = 0; i < n; ++i) buffer.set(i, low + (high - low) * uniform());
  return buffer;
}

bool near(double got, double expected, double tolerance, double scale = 1) {
  return std::abs(got - expected) <= tolerance * (scale + std::abs(expected));
}

void elementwise(bool bf16) {
  const int64_t n = 300;  // a block and a rest
  const Buffer mean = random(n, -3, 3, bf16), var = random(n, 0.01f, 4, bf16), shift = random(7, -1, 1, bf16);
  const Buffer g_mean = random(n, -1, 1), g_var = random(n, -1, 1);
  Buffer out_mean(n), out_var(n), again_mean(n), again_var(n), d_mean(n, bf16), d_var(n, bf16);
  activation_moments_forward(kHere, kElu, mean.in(), var.in(), shift.in(), 7, out_mean.out(), out_var.out(), n);
  activation_moments_backward(kHere, kElu, mean.in(), var.in(), shift.in(), 7, g_mean.in(), g_var.in(), d_mean.out(),
                              d_var.out(), again_mean.out(), again_var.out(), n);
  for (int64_t i = 0; i < n; ++i) {
    p3::scalar::Moments<double> out;
    p3::scalar::MomentGradients<double> d;
    p3::scalar::activation_gradients(Activation::kElu, 1.3, mean[i] + shift[i % 7], var[i], &out, &d);
    check(near(out_mean[i], out.mean, 1e-6) && near(out_var[i], out.var, 1e-5, 0), "moments");
    check(out_mean[i] == again_mean[i] && out_var[i] == again_var[i], "moments again");
    const double tolerance = bf16 ? 5e-3 : 1e-5;
    check(near(d_mean[i], g_mean[i] * d.mean_mean + g_var[i] * d.var_mean, tolerance), "d_mean");
    check(near(d_var[i], g_mean[i] * d.mean_var + g_var[i] * d.var_var, tolerance), "d_var");
  }
  Buffer out(n), d_x(n);
  activation_forward(kHere, kElu, mean.in(), shift.in(), 7, out.out(), n);
  activation_backward(kHere, kElu, out.in(), g_mean.in(), d_x.out(), n);
  for (int64_t i = 0; i < n; ++i) {
    const double x = mean[i] + shift[i % 7], value = x > 0 ? x : 1.3f * std::expm1(x);
    check(near(out[i], value, 1e-6), "activation");
    check(near(d_x[i], g_mean[i] * (x > 0 ? 1 : value + 1.3f), 1e-5), "activation backward");
  }
}

double log_normal(double x, double mean, double std) {
  const double z = (x - mean) / std;
  return -0.5 * z * z - std::log(std) - 0.9189385332046727;
}

void mixture(int64_t actions, bool row_std) {
  const int64_t samples = 6, rows = 5;
  const Buffer action = random(rows * actions, -1, 1), means = random(samples * rows * actions, -1, 1);
  const Buffer std = random(row_std ? rows * actions : actions, 0.3f, 1), d = random(rows, 0.5f, 1);
  const int64_t stride = row_std ? actions : 0;
  const Mixture m{action.in(), means.in(), std.in(), stride, samples, rows, actions, std::log(6.0f)};
  Buffer log_prob(rows), d_means(means.size), d_action(action.size), d_std(action.size);
  mixture_log_prob_forward(kHere, m, log_prob.raw());
  mixture_log_prob_backward(kHere, m, log_prob.raw(), d.raw(), d_means.out(), d_action.raw(), d_std.raw(), false);
  for (int64_t b = 0; b < rows; ++b) {
    std::vector<double> logs(samples, 0.0);
    for (int64_t i = 0; i < samples; ++i) {
      for (int64_t a = 0; a < actions; ++a) {
        logs[i] += log_normal(action[b * actions + a], means[(i * rows + b) * actions + a], std[b * stride + a]);
      }
    }
    const double highest = *std::max_element(logs.begin(), logs.end());
    double sum = 0;
    for (double log : logs) sum += std::exp(log - highest);
    const double exact = highest + std::log(sum / samples);
    check(near(log_prob[b], exact, 1e-5), "mixture");
    for (int64_t a = 0; a < actions; ++a) {
      double of_action = 0, of_std = 0;
      for (int64_t i = 0; i < samples; ++i) {
        const int64_t at = (i * rows + b) * actions + a;
        const double s = std[b * stride + a], z = (action[b * actions + a] - means[at]) / s;
        const double weight = d[b] * std::exp(logs[i] - exact) / samples;
        check(near(d_means[at], weight * z / s, 1e-4), "d_means");
        of_action -= weight * z / s;
        of_std += weight * (z * z - 1) / s;
      }
      check(near(d_action[b * actions + a], of_action, 1e-4), "d_action");
      check(near(d_std[b * actions + a], of_std, 1e-4), "d_std");
    }
  }
}

void head() {
  const int64_t rows = 5, actions = 37;
  const int64_t n = rows * actions;
  const Buffer action = random(n, -1, 1), mean = random(n, -1, 1), var = random(n, 0.1f, 1);
  const Buffer std = random(actions, 0.3f, 1), old_mean = random(n, -1, 1), old_std = random(n, 0.4f, 1);
  const Head h{action.in(), mean.in(), var.in(), std.in(), old_mean.in(), old_std.in(), 0, rows, actions};
  Buffer log_prob(rows), entropy(rows), kl(rows), d_action(n), d_mean(n), d_var(n), d_std(n);
  gaussian_head_forward(kHere, h, log_prob.raw(), entropy.raw(), kl.raw());
  const Buffer g1 = random(rows, -1, 1), g2 = random(rows, -1, 1), g3 = random(rows, -1, 1);
  gaussian_head_backward(kHere, h, g1.raw(), g2.raw(), g3.raw(), d_action.out(), d_mean.out(), d_var.out(),
                         d_std.raw());
  for (int64_t b = 0; b < rows; ++b) {
    double exact_log = 0, exact_entropy = 0, exact_kl = 0;
    for (int64_t a = 0; a < actions; ++a) {
      const int64_t at = b * actions + a;
      const double v = var[at] + std[a] * std[a], difference = action[at] - mean[at], shift = old_mean[at] - mean[at];
      const double old_var = old_std[at] * old_std[at];
      exact_log += log_normal(action[at], mean[at], std::sqrt(v));
      exact_entropy += 0.5 * std::log(2 * M_PI * M_E * v);
      exact_kl += 0.5 * (old_var / v + shift * shift / v - 1 - std::log(old_var / v));
      const double of_var = 0.5 / v * (g1[b] * (difference * difference / v - 1) + g2[b] +
                                       g3[b] * (1 - (old_var + shift * shift) / v));
      check(near(d_action[at], -g1[b] * difference / v, 1e-5), "head d_action");
      check(near(d_mean[at], g1[b] * difference / v - g3[b] * shift / v, 1e-5), "head d_mean");
      check(near(d_var[at], of_var, 1e-5) && near(d_std[at], 2 * std[a] * of_var, 1e-5), "head d_var");
    }
    check(near(log_prob[b], exact_log, 1e-5) && near(entropy[b], exact_entropy, 1e-5) && near(kl[b], exact_kl, 1e-5),
          "head");
  }
}

// A network of small odd layers, its parameters, and its passes in float64.
struct Fixture {
  std::vector<int> widths;
  std::vector<Buffer> weights, biases;
  Network network{};

  Fixture(std::vector<int> sizes, bool bf16) : widths(std::move(sizes)) {
    network.layers = static_cast<int>(widths.size()) - 1;
    network.bf16 = bf16;
    network.activation = kElu;
    for (int l = 0; l < network.layers; ++l) {
      weights.push_back(random(int64_t{widths[l]} * widths[l + 1], -0.5f, 0.5f, bf16));
      biases.push_back(random(widths[l + 1], -0.3f, 0.3f));
    }
    for (int l = 0; l < network.layers; ++l) {
      network.weights[l] = weights[l].data();
      network.biases[l] = biases[l].in();
    }
    for (size_t l = 0; l < widths.size(); ++l) network.widths[l] = widths[l];
  }
  void run(std::vector<double>& mean, std::vector<double>* var) const {
    for (int l = 0; l < network.layers; ++l) {
      std::vector<double> out_mean(widths[l + 1]), out_var(widths[l + 1]);
      for (int o = 0; o < widths[l + 1]; ++o) {
        double m = biases[l][o], v = 0;
        for (int i = 0; i < widths[l]; ++i) {
          const double w = weights[l][int64_t{o} * widths[l] + i];
          m += w * mean[i];
          if (var) v += w * w * (*var)[i];
        }
        if (l + 1 < network.layers && var) {
          const auto out = p3::scalar::activation_moments(Activation::kElu, 1.3, m, v);
          m = out.mean;
          v = out.var;
        } else if (l + 1 < network.layers) {
          m = m > 0 ? m : 1.3f * std::expm1(m);
        }
        out_mean[o] = m;
        out_var[o] = v;
      }
      mean = out_mean;
      if (var) *var = out_var;
    }
  }
};

template <class T, class Weight>
void actor_moments(const Fixture& f, int stochastic) {
  const int64_t rows = T::kRows + 3;
  const int inputs = f.widths[0], outputs = f.widths.back();
  const Buffer mean = random(rows * inputs, -1, 1), var = random(rows * stochastic, 0, 1);
  Buffer out_mean(rows * outputs), out_var(rows * outputs);
  launch<MlpMoments<T, Weight>>(kHere, blocks_for(rows, T::kRows), moments_bytes(f.network, T::kRows),
                                {f.network, mean.in(), var.in(), stochastic, rows, out_mean.raw(), out_var.raw()});
  for (int64_t b = 0; b < rows; ++b) {
    std::vector<double> m(inputs), v(inputs, 0.0);
    for (int i = 0; i < inputs; ++i) m[i] = mean[b * inputs + i];
    for (int j = 0; j < stochastic; ++j) v[inputs - stochastic + j] = var[b * stochastic + j];
    f.run(m, &v);
    for (int o = 0; o < outputs; ++o) {
      check(near(out_mean[b * outputs + o], m[o], 1e-5) && near(out_var[b * outputs + o], v[o], 1e-5), "actor moments");
    }
  }
}

// With numbered rows, last to first and beyond 32 bits, the noise is that of the numbers.
template <class T, class Weight>
void actor_actions(const Fixture& f, int context, bool numbered) {
  const int64_t rows = T::kRows + 3, samples = 3;
  const int latent = f.widths[0] - context, outputs = f.widths.back();
  const Buffer at = random(rows * context, -1, 1), mean = random(rows * latent, -1, 1), std = random(rows * latent, 0, 1);
  const Buffer action = random(rows * outputs, -1, 1), action_std = random(outputs, 0.4f, 1);
  Buffer noise(samples * rows * latent), means(samples * rows * outputs), log_prob(rows);
  const Seed seed{0x123456789abcdefull, nullptr};
  std::vector<int64_t> numbers(rows);
  for (int64_t b = 0; b < rows; ++b) numbers[b] = (rows - b) << 31;
  const int64_t* const row_numbers = numbered ? numbers.data() : nullptr;
  normal(kHere, seed, 0, 0, samples, 0, row_numbers, rows, latent, noise.raw());
  const Sampled s{at.in(), mean.in(), std.in(), kNone, seed, row_numbers, samples, context, latent, samples, rows};
  const Likelihood l{action.in(), action_std.in(), 0, std::log(3.0f), log_prob.raw()};
  launch<MlpActions<T, Weight>>(kHere, blocks_for(rows, T::kRows), actions_bytes(f.network, context, T::kRows),
                                {f.network, s, l, means.raw()});
  for (int64_t b = 0; b < rows; ++b) {
    double sum = 0;
    for (int64_t i = 0; i < samples; ++i) {
      std::vector<double> x(f.widths[0]);
      for (int c = 0; c < context; ++c) x[c] = at[b * context + c];
      for (int z = 0; z < latent; ++z) {
        x[context + z] = mean[b * latent + z] + std[b * latent + z] * noise[(i * rows + b) * latent + z];
      }
      f.run(x, nullptr);
      double log = 0;
      for (int o = 0; o < outputs; ++o) {
        check(near(means[(i * rows + b) * outputs + o], x[o], 1e-5), "actions");
        log += log_normal(action[b * outputs + o], x[o], action_std[o]);
      }
      sum += std::exp(log);
    }
    check(near(log_prob[b], std::log(sum / samples), 1e-4), "likelihood of the actions");
  }
}

void latent() {
  const int64_t samples = 3, rows = 4, columns = 5, d_columns = 7;
  const Buffer d = random(samples * rows * d_columns, -1, 1), noise = random(samples * rows * columns, -1, 1);
  Buffer d_mean = random(rows * columns, -1, 1), d_std = random(rows * columns, -1, 1);
  std::vector<double> exact_mean, exact_std;
  for (int64_t i = 0; i < rows * columns; ++i) {
    double m = d_mean[i], s = d_std[i];
    for (int64_t k = 0; k < samples; ++k) {
      const double g = d[(k * rows + i / columns) * d_columns + i % columns];
      m += g;
      s += g * noise[k * rows * columns + i];
    }
    exact_mean.push_back(m);
    exact_std.push_back(s);
  }
  latent_backward(kHere, d.raw(), d_columns, noise.raw(), d_mean.raw(), d_std.raw(), samples, rows, columns);
  for (int64_t i = 0; i < rows * columns; ++i) {
    check(near(d_mean[i], exact_mean[i], 1e-5) && near(d_std[i], exact_std[i], 1e-5), "latent backward");
  }
}

}  // namespace

int main() {
  for (bool bf16 : {false, true}) elementwise(bf16);
  mixture(5, false);
  mixture(70, true);
  head();
  latent();
  const Fixture plain({13, 11, 6, 5}, false), half({13, 11, 6, 5}, true), wide({9, 261, 3}, false);
  actor_moments<Tile<8>, float>(plain, 6);
  actor_moments<Tile<16>, float>(wide, 9);  // more outputs than a pass makes
  actor_moments<Tile<16>, Bf16>(half, 6);
  actor_actions<Tile<8>, Bf16>(half, 5, true);
  actor_actions<Tile<16>, float>(plain, 5, false);
  std::printf("%s\n", failures ? "some CUDA kernels are wrong" : "all CUDA kernels are right");
  return failures ? 1 : 0;
}
