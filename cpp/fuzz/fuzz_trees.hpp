// One input of the fuzzer.
#pragma once

#include "letheon/common/keyed_hash.hpp"

namespace letheon::fuzz {

// Restores a forest from the input and uses it. Returns whether the input was taken; aborts if
// something that must hold does not.
bool try_input(Bytes input);

}  // namespace letheon::fuzz
