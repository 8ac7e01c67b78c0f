// An input of the fuzzer as a case: settings and rows from its first bytes, trees from the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "letheon/forest/spec.hpp"
#include "letheon/common/keyed_hash.hpp"
#include "people.hpp"

namespace letheon::fuzz {

// The first bytes of an input.
//   0     what: bits 0-1 criterion (3: gini), 2 missing values, 3 weights, 4 subsampling,
//         5 text ids, 6 the rows are spelt out in the input, 7 only splits are, sums are added
//   1     number of rows - 1, modulo 32
//   2     number of columns - 1, modulo 4; number of classes - 1, modulo 5, times 16
//   3     random_depth modulo 4; max_depth modulo 8, times 16 (0: unlimited)
//   4     min_samples_leaf - 1, modulo 4; n_thresholds times 16 (0: unlimited)
//   5     number of trees - 1, modulo 4; bit 2 a cache for every node; bit 3 two blocks,
//         the second from its magic on; bit 4 eager; bit 5 a fixed scale of the target; bit 6 columns of
//         categories, by the lowest bits of byte 6
//   6, 7  seed of the rows and keys
inline constexpr std::size_t kHeader = 8;

struct Case {
  forest::Spec spec;
  std::uint32_t n_classes = 0;
  testing::People people;
  bool eager = false;
  std::vector<std::uint8_t> trees;
  std::vector<Bytes> blocks;  // of `trees`
};

// Needs at least kHeader bytes. Throws std::invalid_argument if the rows are of no use.
[[nodiscard]] Case read_case(Bytes input);

}  // namespace letheon::fuzz
