// One input of the fuzzer of boosted trees.
#pragma once

#include "letheon/common/keyed_hash.hpp"

namespace letheon::fuzz {

// Restores a boosted model from the input and uses it. Returns whether the input was taken; aborts
// if something that must hold does not.
bool try_boosting(Bytes input);

}  // namespace letheon::fuzz
