// Candidates of the discrete Gaussian and the discrete Laplace law, tried by rejection.
//
// The text of src/letheon/convex/_discrete.py has the rule. A candidate takes a random word
// (sign, place and block) and half of one (a uniform number). Floats decide where their error cannot
// matter; what they cannot decide is left to the caller.
#pragma once

#include <cstdint>
#include <span>

namespace letheon {

enum class Law : std::uint8_t { normal, laplace };
enum class Fate : std::uint8_t { rejected = 0, kept = 1, undecided = 2 };

// `words` are n words, and n / 2 with two uniform numbers each; `values` and `fates` get n entries.
// Throws std::invalid_argument unless n is even, the sizes agree and 1 <= scale <= 2^24.
void try_candidates(Law law, std::int64_t scale, std::span<const std::uint64_t> words,
                    std::span<std::int64_t> values, std::span<Fate> fates);

}  // namespace letheon
