// An input of the fuzzer of boosted trees as a case: settings and rows from its first bytes, trees
// from the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "letheon/boosting/spec.hpp"
#include "letheon/common/keyed_hash.hpp"
#include "people.hpp"

namespace letheon::fuzz {

// The first bytes of an input.
//   0     what: bits 0-1 loss (3: log loss), 2 missing values, 3 weights, 5 text ids, 6 the rows are
//         spelt out in the input, 7 only splits are, leaves are added
//   1     number of rows - 1, modulo 16
//   2     number of columns - 1, modulo 4; number of classes - 1, modulo 5, times 16
//   3     number of rounds, by a table of 8; number of chains - 1, modulo 4, times 16
//   4     max_leaves - 2, modulo 16; step_bits, by a table of 8, times 16
//   5     people per chain - 1, modulo 4; bit 2 the largest l2; bit 3 no l2; bit 4 eager; bit 5 a
//         fixed scale of the target; bit 6 columns of categories, by the lowest bits of byte 6
//   6, 7  seed of the rows and keys
inline constexpr std::size_t kBoostingHeader = 8;

struct BoostingCase {
  boosting::Spec spec;
  std::uint32_t n_classes = 0;
  testing::People people;
  bool eager = false;
  std::vector<std::uint8_t> trees;
};

// Needs at least kBoostingHeader bytes. Throws std::invalid_argument if the rows are of no use.
[[nodiscard]] BoostingCase read_boosting(Bytes input);

}  // namespace letheon::fuzz
