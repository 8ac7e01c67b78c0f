// Writes inputs for the fuzzers to start from: real trees of many settings, and forged ones.
//
//   make_seeds FOLDER   (writes FOLDER/trees and FOLDER/boosting)
#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "boosting_input.hpp"
#include "input.hpp"
#include "letheon/boosting/model.hpp"
#include "letheon/common/framing.hpp"
#include "letheon/forest/forest.hpp"

namespace {

using letheon::fuzz::Case;
using letheon::testing::Luck;
using letheon::testing::People;
using Input = std::vector<std::uint8_t>;

// The rows as source.hpp reads them.
void spell_rows(const People& people, Input& out) {
  for (const float x : people.X) {
    letheon::put(out, std::bit_cast<std::uint32_t>(x));
  }
  for (const std::uint32_t label : people.labels) {
    out.push_back(static_cast<std::uint8_t>(label));
  }
  for (const double y : people.y) {
    letheon::put(out, std::bit_cast<std::uint64_t>(y));
  }
  for (const std::uint32_t weight : people.weights) {
    out.push_back(static_cast<std::uint8_t>(weight % 4));
  }
  for (std::size_t i = 0; i < people.n_rows(); ++i) {
    out.push_back(static_cast<std::uint8_t>(people.is_text ? 1 + i % 3 : i));
  }
}

Input trees_of(const Case& made, std::size_t first, std::size_t last) {
  auto spec = made.spec;
  const auto part = [&](std::vector<std::uint64_t>& keys) {
    if (!keys.empty()) {
      keys = {keys.begin() + static_cast<std::ptrdiff_t>(first),
              keys.begin() + static_cast<std::ptrdiff_t>(last)};
    }
  };
  part(spec.tree_keys);
  part(spec.sample_keys);
  letheon::forest::Forest forest(spec);
  forest.fit(made.people.batch(), made.n_classes, made.people.ids(), 1);
  return forest.trees_bytes(letheon::testing::counting(made.n_classes), 1);
}

Input make_tree_seed(Luck& luck) {
  Input input(letheon::fuzz::kHeader);
  for (std::uint8_t& byte : input) {
    byte = static_cast<std::uint8_t>(luck.next());
  }
  const bool forged = (input[0] & 128) != 0;
  const bool two_blocks = (input[5] & 8) != 0 && input[5] % 4 > 0;
  input[5] = static_cast<std::uint8_t>(two_blocks ? input[5] : input[5] & ~8);
  if ((input[0] & 64) != 0) {
    // Rows must be read before they can be written.
    Input plain = input;
    plain[0] = static_cast<std::uint8_t>(plain[0] & ~(64 | 128));
    spell_rows(letheon::fuzz::read_case(plain).people, input);
  }
  if (forged) {
    for (std::size_t i = 0; i < 60; ++i) {
      input.push_back(static_cast<std::uint8_t>(luck.next()));
    }
    return input;
  }
  const Case made = letheon::fuzz::read_case(input);
  const std::size_t n_trees = made.spec.tree_keys.size();
  const std::size_t middle = two_blocks ? 1 : 0;
  const std::size_t ends[]{0, middle, n_trees};
  for (std::size_t block = 0; block < 2; ++block) {
    const std::size_t first = ends[block];
    const std::size_t last = ends[block + 1];
    if (first < last) {
      const Input trees = trees_of(made, first, last);
      input.insert(input.end(), trees.begin(), trees.end());
    }
  }
  return input;
}

Input make_boosting_seed(Luck& luck) {
  Input input(letheon::fuzz::kBoostingHeader);
  for (std::uint8_t& byte : input) {
    byte = static_cast<std::uint8_t>(luck.next());
  }
  if ((input[0] & 64) != 0) {
    Input plain = input;
    plain[0] = static_cast<std::uint8_t>(plain[0] & ~(64 | 128));
    spell_rows(letheon::fuzz::read_boosting(plain).people, input);
  }
  if ((input[0] & 128) != 0) {
    for (std::size_t i = 0; i < 60; ++i) {
      input.push_back(static_cast<std::uint8_t>(luck.next()));
    }
    return input;
  }
  const auto made = letheon::fuzz::read_boosting(input);
  letheon::boosting::Model model(made.spec);
  const auto order = letheon::testing::counting(made.n_classes);
  model.fit(made.people.batch(), {made.n_classes, order}, made.people.ids(), 1);
  const Input trees = model.trees_bytes(1);
  input.insert(input.end(), trees.begin(), trees.end());
  return input;
}

template <typename MakeSeed>
void write_seeds(const std::filesystem::path& folder, MakeSeed make_seed) {
  std::filesystem::create_directories(folder);
  constexpr int kSeeds = 150;
  for (int i = 0; i < kSeeds; ++i) {
    Luck luck(static_cast<std::uint64_t>(i));
    Input seed;
    try {
      seed = make_seed(luck);
    } catch (const std::invalid_argument&) {
      continue;  // luck made rows that no model takes
    }
    std::ofstream file(folder / ("seed-" + std::to_string(i)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder(argv[1]);
  write_seeds(folder / "trees", make_tree_seed);
  write_seeds(folder / "boosting", make_boosting_seed);
  return 0;
}
