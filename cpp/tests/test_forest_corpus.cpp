// Replays the inputs that the fuzzer has found worth keeping, and simple mutations of them.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checks.hpp"
#include "fuzz_trees.hpp"
#include "input.hpp"
#include "people.hpp"

namespace {

using letheon::fuzz::try_input;
using letheon::testing::check;
using letheon::testing::Luck;
using Input = std::vector<std::uint8_t>;

std::vector<Input> saved_inputs() {
  std::vector<Input> inputs;
  const char* const folder = std::getenv("LETHEON_CORPUS");
  if (folder == nullptr) {
    return inputs;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// One of the things that happen to files.
Input mutated(Luck& luck, const Input& input, const Input& other) {
  Input changed = input;
  const std::size_t place = luck.below(changed.size());
  const auto at = changed.begin() + static_cast<std::ptrdiff_t>(place);
  switch (luck.below(5)) {
    case 0:
      changed[place] = static_cast<std::uint8_t>(luck.next());
      break;
    case 1:
      changed[place] = static_cast<std::uint8_t>(changed[place] ^ (1u << luck.below(8)));
      break;
    case 2:
      changed.resize(place);
      break;
    case 3:
      changed.insert(at, static_cast<std::uint8_t>(luck.next()));
      break;
    default:
      changed.resize(place);
      changed.insert(changed.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(std::min(place, other.size())),
                     other.end());
  }
  return changed;
}

}  // namespace

int main() {
  const std::vector<Input> inputs = saved_inputs();
  check(inputs.size() >= 20, "the saved inputs are there (LETHEON_CORPUS names their folder)");
  std::size_t n_taken = 0;
  std::size_t n_refused = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Luck luck(i);
    ++(try_input(inputs[i]) ? n_taken : n_refused);
    for (int round = 0; round < 60 && !inputs[i].empty(); ++round) {
      const Input& other = inputs[luck.below(inputs.size())];
      ++(try_input(mutated(luck, inputs[i], other)) ? n_taken : n_refused);
    }
  }
  check(n_taken > 100 && n_refused > 100, "some are taken and some refused");
  return letheon::testing::result();
}
