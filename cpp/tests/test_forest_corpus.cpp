// The saved inputs of the fuzzer of forests.
#include "corpus.hpp"
#include "fuzz_trees.hpp"

int main() { return letheon::testing::replay_corpus(letheon::fuzz::try_input); }
