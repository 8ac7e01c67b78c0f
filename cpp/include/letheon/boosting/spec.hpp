// Settings of a boosted model: everything that, with the rows, determines its trees.
//
// The structure of the trees comes from a keyed sample of people (the skeleton), cut into disjoint
// chains; the values of the leaves come from all rows. Numbers are integers throughout: gradients
// in units of 2^-15, scores of rows in steps of 2^-step_bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "letheon/common/keyed_hash.hpp"

namespace letheon::boosting {

enum class Loss : std::uint8_t { logistic, squared, poisson };

inline constexpr std::uint32_t kMostLeaves = 64;
inline constexpr std::uint32_t kMostBins = 254;
inline constexpr std::uint32_t kMostRounds = 10000;
inline constexpr std::int64_t kRateUnit = 1024;
inline constexpr std::int64_t kMostL2 = std::int64_t{1} << 58;  // with the hessians below 2^60

// What a draw is about; each use has its own numbers.
enum class Use : std::uint64_t { people = 0, chain = 1, dither = 2, base = 3, column = 4, scale = 5 };

struct Spec {
  Loss loss = Loss::logistic;
  std::uint32_t n_columns = 0;
  std::uint32_t n_rounds = 100;
  std::uint32_t max_leaves = 64;
  std::uint32_t rate = 307;        // of the values, in units of 1/1024
  std::uint32_t pilot_rate = 307;  // of the chains, in units of 1/1024
  std::int64_t l2 = 1 << 15;       // in units of 2^-15, for rows of weight 1
  std::uint32_t step_bits = 4;
  std::uint32_t n_chains = 4;
  std::uint32_t chain_people = 2500;  // 0: by the number of people in all
  std::uint32_t max_bins = 64;
  std::uint32_t min_samples_leaf = 10;
  std::uint32_t tree_columns = 1;  // columns that a tree may use
  std::uint64_t key = 0;
  std::optional<int> y_exponent{};            // fixed scale of a regression target
  std::vector<std::uint8_t> is_categorical{};  // one per column; empty: none is

  [[nodiscard]] bool is_regression() const noexcept { return loss != Loss::logistic; }
  [[nodiscard]] bool categorical(std::size_t column) const noexcept {
    return !is_categorical.empty() && is_categorical[column] != 0;
  }
  [[nodiscard]] std::uint64_t draw(Use use, std::uint64_t about) const noexcept {
    return mix64(mix64(key, static_cast<std::uint64_t>(use)), about);
  }
  // The rounds [first_round(c), first_round(c + 1)) are those of chain c.
  [[nodiscard]] std::uint32_t first_round(std::size_t chain) const noexcept {
    return static_cast<std::uint32_t>(chain * n_rounds / n_chains);
  }
  // The largest value of a leaf in steps: 8, and so small that no score overflows.
  [[nodiscard]] std::int32_t largest_step() const noexcept;

  // Throws std::invalid_argument, with what was given and what was expected.
  void validate() const;
};

// What a change did to a model, or would do.
struct Report {
  std::uint32_t chains = 0;      // chains that must be grown again
  std::uint32_t trees = 0;       // their trees
  std::uint32_t rounds = 0;      // rounds whose values must be computed again
  bool everything = false;       // the scale, the classes or the size of the skeleton changed
  bool emptied = false;          // a class has lost its last row
};

}  // namespace letheon::boosting
