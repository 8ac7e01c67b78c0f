// What the whole set of rows decides: classes, scale of the target, size of the skeleton, base
// scores. Each is rounded with a key, so that a single row rarely changes it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "letheon/boosting/spec.hpp"

namespace letheon::boosting {

__extension__ using WideInt = __int128;

// Sums over the rows of a regression target.
struct TargetSums {
  std::int64_t weight = 0;
  std::int64_t sum = 0;   // of weight * q
  WideInt squares = 0;    // of weight * q^2

  void add(std::int64_t row_weight, std::int64_t q) noexcept {
    weight += row_weight;
    sum += row_weight * q;
    squares += WideInt{row_weight} * q * q;
  }
};

struct Frame {
  std::vector<std::uint32_t> classes;  // codes of the classes held, in the order of their labels
  std::uint32_t n_outputs = 1;
  std::uint64_t people = 0;            // rounded number of people, in units of 2^-32
  std::uint64_t chain_people = 0;      // of one chain, in the same units
  int y_exponent = 0;                  // of the table
  int scale = 0;                       // one unit of a score is 2^scale units of q
  std::int64_t centre = 0;             // score 0 is this q
  std::vector<std::int32_t> base;      // start of each output, in steps

  // Whether the same chains grow the same trees.
  [[nodiscard]] bool grows_like(const Frame& other) const noexcept {
    return classes == other.classes && people == other.people && y_exponent == other.y_exponent &&
           scale == other.scale && centre == other.centre;
  }

  // The chain of a person with this hash of the id.
  [[nodiscard]] std::optional<std::uint32_t> chain_of(const Spec& spec,
                                                      std::uint64_t owner) const noexcept;
  // No person with a larger `spec.draw(Use::chain, owner)` is in a chain.
  [[nodiscard]] std::uint64_t last_hash(const Spec& spec) const noexcept;
  // The target of a row in units of 2^-15.
  [[nodiscard]] std::int32_t target(std::int64_t q) const noexcept;
};

// What the frame is made from.
struct RowTotals {
  std::uint64_t n_people = 0;
  std::vector<std::int64_t> class_weights;  // by code
  int y_exponent = 0;
  TargetSums sums;
};

// About the largest hash of a person in a chain, from the number of rows alone.
[[nodiscard]] std::uint64_t guess_last_hash(const Spec& spec, std::uint64_t n_rows);

// `order` lists the codes of all classes in the order of their labels.
[[nodiscard]] Frame make_frame(const Spec& spec, const RowTotals& totals,
                               std::span<const std::uint32_t> order);

}  // namespace letheon::boosting
