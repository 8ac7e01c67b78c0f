// Candidates of the discrete Gaussian and the discrete Laplace law, tried by rejection.
//
// The text of src/letheon/linear/_discrete.py has the rule. A candidate takes a random word
// (sign, place and block) and half of one (a uniform number). Floats decide where their error cannot
// matter; what they cannot decide is left to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace letheon {

enum class Law : std::uint8_t { normal, laplace };

// Writes the candidates that are kept, in order, until `kept` is full or one cannot be decided;
// returns how many. `words` are n words, and n / 2 with two uniform numbers each. Throws
// std::invalid_argument unless there are three words for every two candidates and
// 1 <= scale <= 2^24.
std::size_t keep_candidates(Law law, std::int64_t scale, std::span<const std::uint64_t> words,
                            std::span<std::int64_t> kept);

}  // namespace letheon
