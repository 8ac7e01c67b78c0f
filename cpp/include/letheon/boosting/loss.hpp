// Losses in integers: gradients from tables that are built by integer arithmetic.
//
// Scores are in units of 1/256, gradients and targets in units of 2^-15.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "letheon/boosting/spec.hpp"

namespace letheon::boosting {

inline constexpr int kScoreBits = 8;
inline constexpr int kGradientBits = 15;
inline constexpr std::int32_t kOne = 1 << kGradientBits;
inline constexpr std::int32_t kWidest = 24 << kScoreBits;  // scores beyond count as this
inline constexpr std::int32_t kSteepest = 8 << kScoreBits;  // the same for Poisson means

struct LossTables {
  LossTables() noexcept;

  std::array<std::uint16_t, 2 * kWidest + 1> sigmoid;          // of score - kWidest, 2^-15
  std::array<std::uint32_t, kWidest + 1> decay;                // exp(-score), 2^-30
  std::array<std::uint64_t, kWidest + 1> fine_decay;           // exp(-score), 2^-62
  std::array<std::int32_t, kWidest + kSteepest + 1> mean;      // exp(score - kWidest), 2^-15
};

[[nodiscard]] const LossTables& loss_tables() noexcept;

// log(numerator / denominator), rounded towards 0, and at most kWidest in size. Both are weights
// or sums below 2^63; not both may be 0.
[[nodiscard]] std::int32_t log_ratio(std::uint64_t numerator, std::uint64_t denominator) noexcept;

struct Gradient {
  std::int32_t g;
  std::int32_t h;
};

[[nodiscard]] inline Gradient share_gradient(std::int32_t p, bool is_class) noexcept {
  return {p - (is_class ? kOne : 0), (p * (kOne - p)) >> kGradientBits};
}

[[nodiscard]] inline Gradient logistic_gradient(const LossTables& tables, std::int32_t score,
                                                bool positive) noexcept {
  const std::int32_t place = std::clamp(score, -kWidest, kWidest) + kWidest;
  return share_gradient(tables.sigmoid[static_cast<std::size_t>(place)], positive);
}

[[nodiscard]] inline Gradient squared_gradient(std::int32_t score, std::int32_t y) noexcept {
  return {score * (1 << (kGradientBits - kScoreBits)) - y, kOne};
}

[[nodiscard]] inline Gradient poisson_gradient(const LossTables& tables, std::int32_t score,
                                               std::int32_t y) noexcept {
  const std::int32_t place = std::clamp(score, -kWidest, kSteepest) + kWidest;
  const std::int32_t mean = tables.mean[static_cast<std::size_t>(place)];
  return {mean - y, mean};
}

// One gradient per class.
void softmax_gradients(const LossTables& tables, std::span<const std::int32_t> scores,
                       std::uint32_t label, Gradient* out) noexcept;

// The gradients of one row: `target` is the place of its class, or the scaled number.
inline void row_gradients(Loss loss, const LossTables& tables,
                          std::span<const std::int32_t> scores, std::int32_t target,
                          Gradient* out) noexcept {
  if (loss == Loss::squared) {
    *out = squared_gradient(scores[0], target);
  } else if (loss == Loss::poisson) {
    *out = poisson_gradient(tables, scores[0], target);
  } else if (scores.size() == 1) {
    *out = logistic_gradient(tables, scores[0], target == 1);
  } else {
    softmax_gradients(tables, scores, static_cast<std::uint32_t>(target), out);
  }
}

}  // namespace letheon::boosting
