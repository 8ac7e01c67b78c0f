// Candidates of the discrete Gaussian and the discrete Laplace law, tried by rejection.
//
// The text of src/letheon/convex/_discrete.py has the rule. A candidate takes three random words:
// sign and place, block, and a uniform number. Floats decide where their error cannot matter; what
// they cannot decide is left to the caller.
#pragma once

#include <cstdint>
#include <span>

namespace letheon {

enum class Law : std::uint8_t { normal, laplace };
enum class Fate : std::uint8_t { rejected = 0, kept = 1, undecided = 2 };

// `words` are three runs of n words, one run for each purpose; `values` and `fates` get n entries.
// Throws std::invalid_argument unless the sizes agree and 1 <= scale <= 2^40.
void try_candidates(Law law, std::int64_t scale, std::span<const std::uint64_t> words,
                    std::span<std::int64_t> values, std::span<Fate> fates);

}  // namespace letheon
