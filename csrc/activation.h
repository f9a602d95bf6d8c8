// The activations that moments pass through, by number.
#pragma once

namespace p3 {
enum class Activation : int { kElu = 0, kLeakyRelu = 1 };  // ReLU is LeakyReLU with slope 0
}  // namespace p3
