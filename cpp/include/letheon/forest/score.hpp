// Split criteria on integer tallies. A tally has one lane per class, or the lanes (weight, sum).
//
// Every score is a pure function of integers; higher is better.
#pragma once

#include <cstdint>
#include <span>

namespace letheon::forest {

using Lanes = std::span<const std::int64_t>;

// x * log2(x) in fixed point with 24 fractional bits, by integer arithmetic alone; 0 for x = 0.
// Needs 0 <= x < 2^31.
[[nodiscard]] std::int64_t x_log_x(std::int64_t x) noexcept;

[[nodiscard]] inline std::int64_t class_weight(Lanes lanes) noexcept {
  std::int64_t sum = 0;
  for (const std::int64_t lane : lanes) {
    sum += lane;
  }
  return sum;
}

struct Gini {
  using Score = double;
  [[nodiscard]] static Score of(Lanes left, Lanes right, std::int64_t n_left,
                                std::int64_t n_right) noexcept {
    std::int64_t a = 0;
    std::int64_t b = 0;
    for (std::size_t c = 0; c < left.size(); ++c) {
      a += left[c] * left[c];
      b += right[c] * right[c];
    }
    return static_cast<double>(a) / static_cast<double>(n_left) +
           static_cast<double>(b) / static_cast<double>(n_right);
  }
};

struct Entropy {
  using Score = std::int64_t;
  [[nodiscard]] static Score of(Lanes left, Lanes right, std::int64_t n_left,
                                std::int64_t n_right) noexcept {
    std::int64_t score = -x_log_x(n_left) - x_log_x(n_right);
    for (std::size_t c = 0; c < left.size(); ++c) {
      score += x_log_x(left[c]) + x_log_x(right[c]);
    }
    return score;
  }
};

struct SquaredError {
  using Score = double;
  [[nodiscard]] static Score of(Lanes left, Lanes right, std::int64_t n_left,
                                std::int64_t n_right) noexcept {
    const auto a = static_cast<double>(left[1]);
    const auto b = static_cast<double>(right[1]);
    return (a * a) / static_cast<double>(n_left) + (b * b) / static_cast<double>(n_right);
  }
};

}  // namespace letheon::forest
