// Parts of the index: kernels, refusals, wiped bytes in memory and in the file.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "checks.hpp"
#include "index_people.hpp"

namespace {

namespace fs = std::filesystem;
using letheon::Slot;
using letheon::index::choose_kernel;
using letheon::index::grid_limit;
using letheon::index::Index;
using letheon::index::is_supported;
using letheon::index::kLanes;
using letheon::index::Kind;
using letheon::index::kStride;
using letheon::index::Level;
using letheon::index::Metric;
using letheon::index::Spec;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::Luck;
using letheon::testing::Vectors;

using Values = std::vector<std::vector<int>>;  // by row

void put_value(std::vector<std::uint8_t>& bytes, std::size_t word, Kind kind, std::size_t c,
               int value, int offset) {
  if (kind == Kind::int8) {
    bytes[word + c % 4] = static_cast<std::uint8_t>(value + offset);
  } else {
    const auto narrow = static_cast<std::int16_t>(value);
    std::memcpy(&bytes[word + 2 * (c % 2)], &narrow, 2);
  }
}

void compare_kernels(Kind kind, std::size_t n_columns, const Values& rows,
                     const std::vector<int>& query) {
  const std::size_t values = kind == Kind::int8 ? 4 : 2;
  const std::size_t n_words = (n_columns + values - 1) / values;
  std::vector<std::uint8_t> chunk(n_words * kStride, kind == Kind::int8 ? 128 : 0);
  std::vector<std::uint8_t> words(n_words * 4);
  std::array<std::int64_t, kLanes> expected{};
  for (std::size_t c = 0; c < n_columns; ++c) {
    put_value(words, c / values * 4, kind, c, query[c], 0);
    for (std::size_t i = 0; i < kLanes; ++i) {
      put_value(chunk, c / values * kStride + 4 * i, kind, c, rows[i][c], 128);
      expected[i] += (rows[i][c] + (kind == Kind::int8 ? 128 : 0)) * query[c];
    }
  }
  for (const Level level : {Level::portable, Level::avx2, Level::vnni}) {
    if (is_supported(level)) {
      std::array<std::int64_t, kLanes> products{};
      choose_kernel(kind, level)(chunk.data(), words.data(), n_words, products.data());
      check(products == expected, "a kernel gives the sums of products");
    }
  }
}

void test_kernels() {
  Luck luck(1);
  for (const Kind kind : {Kind::int8, Kind::int16}) {
    const int limit = grid_limit(kind);
    for (const std::size_t n_columns : {1, 2, 3, 5, 17, 100, 512, 513, 1025, 3000}) {
      for (int extreme = 0; extreme < 3; ++extreme) {
        const auto draw = [&] {
          const int value = static_cast<int>(luck.below(2u * static_cast<unsigned>(limit) + 1)) - limit;
          return extreme == 0 ? value : (extreme == 1 || luck.one_in(2) ? limit : -limit);
        };
        Values rows(kLanes, std::vector<int>(n_columns));
        std::vector<int> query(n_columns);
        std::ranges::generate(query, draw);
        for (auto& row : rows) {
          std::ranges::generate(row, draw);
        }
        compare_kernels(kind, n_columns, rows, query);
      }
    }
  }
  check(is_supported(Level::portable), "there is always a kernel");
  const std::size_t widest = letheon::index::kMaxColumns;
  compare_kernels(Kind::int8, widest, Values(kLanes, std::vector<int>(widest, 127)),
                  std::vector<int>(widest, -127));
}

Vectors make_rows(std::size_t n) {
  Luck luck(3);
  Vectors rows{.n_columns = 8};
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<float> row(8);
    std::ranges::generate(row, [&] { return static_cast<float>(luck.below(200)) - 100.0f; });
    rows.add(static_cast<std::int64_t>(i), row);
  }
  return rows;
}

// A pattern is held as its complement, so that a search of the memory does not find the pattern.
using Pattern = std::array<std::uint8_t, 4>;

std::size_t count_bytes(std::vector<std::uint8_t> where, Pattern complement) {
  const auto is_same = [](std::uint8_t byte, std::uint8_t other) { return byte == (other ^ 0xFF); };
  std::size_t n = 0;
  for (auto at = where.begin(); at != where.end(); ++at) {
    at = std::search(at, where.end(), complement.begin(), complement.end(), is_same);
    if (at == where.end()) {
      break;
    }
    ++n;
  }
  std::ranges::fill(where, std::uint8_t{0});
  return n;
}

// All memory of this process that can be read, without the stack of this function.
std::size_t count_in_memory(Pattern complement) {
  std::ifstream maps("/proc/self/maps");
  std::ifstream memory("/proc/self/mem", std::ios::binary);
  std::string line;
  std::size_t n = 0;
  while (std::getline(maps, line)) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 ||
        rights[0] != 'r' || rights[1] != 'w' || end - begin > (1u << 26) ||
        line.find("[stack]") != std::string::npos) {
      continue;
    }
    std::vector<std::uint8_t> bytes(end - begin);
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(begin));
    memory.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    n += count_bytes(std::move(bytes), complement);
  }
  return n;
}

void test_wiped_bytes() {
  constexpr std::size_t kGone = 20;  // some of them are the last rows of their cells
  const fs::path path = fs::temp_directory_path() / "letheon-test-index-cells";
  // A word of 8 bits, and the same word with 128 added to each value.
  const Pattern word{0xA4, 0x9E, 0xEC, 0x88};
  const Pattern held{0x24, 0x1E, 0x6C, 0x08};
  {
    Index index({.n_columns = 8, .kind = Kind::int8, .metric = Metric::l2, .path = path}, {1, 2});
    {
      Vectors rows = make_rows(300);
      for (std::size_t i = 0; i < kGone * 8; ++i) {
        rows.X[i] = static_cast<float>(word[i % 4] ^ 0xFF);
      }
      index.add(rows.rows(), rows.ids(), 16, 2);
      static_cast<void>(index.query(rows.matrix(), {3, 2, {}, 2}));
      std::ranges::fill(rows.X, 0.0f);
    }
    const auto read_file = [&] {
      std::vector<std::uint8_t> bytes(fs::file_size(path));
      std::FILE* file = std::fopen(path.c_str(), "rb");
      std::setvbuf(file, nullptr, _IONBF, 0);  // no copy of the contents in a buffer
      check(std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size(), "the file is read");
      std::fclose(file);
      return bytes;
    };
    check(count_bytes(read_file(), held) == 2 * kGone, "the rows are in the file");
#ifdef __linux__
    check(count_in_memory(held) >= 2 * kGone, "the rows are in memory");
#endif
    std::vector<std::uint8_t> head = read_file();
    const std::string start(head.begin() + 1, head.begin() + 24);
    std::ranges::fill(head, std::uint8_t{0});
    check(start == std::string("\x0F\0\0\0\0\0\0{\"__metadata__\":", 23),
          "the file has a header of safetensors");
    std::vector<std::int64_t> gone(kGone);
    std::iota(gone.begin(), gone.end(), 0);
    letheon::IdBatch wanted;
    wanted.ints = gone;
    index.forget(index.find(wanted).slots, 16, 2);
    check(count_bytes(read_file(), held) == 0, "the rows are no longer in the file");
#ifdef __linux__
    check(count_in_memory(word) == 0, "the row is no longer in memory");
    check(count_in_memory(held) == 0, "the stored row is no longer in memory");
#endif
    check(index.n_rows() == 300 - kGone && index.n_pivots() == 16, "the other rows are there");
  }
  check(!fs::exists(path), "the file ends with the index");
}

void test_refusals() {
  check_refused([] { Index({.n_columns = 0}, {1, 2}); }, "no columns");
  check_refused([] { Index({.n_columns = 70'000}, {1, 2}); }, "too many columns");
  check_refused([] { Index({.n_columns = 3, .step = 0.0}, {1, 2}); }, "no step");
  Vectors rows = make_rows(20);
  Index index({.n_columns = 8, .metric = Metric::l2}, {1, 2});
  index.add(rows.rows(), rows.ids(), 4, 1);
  const auto before = index.rows().grid;
  Vectors broken = make_rows(20);
  broken.X[77] = HUGE_VALF;
  check_refused([&] { index.add(broken.rows(), broken.ids(), 8, 1); }, "infinity");
  broken.X[77] = 0.25f;
  auto on_grid = broken.rows();
  on_grid.is_grid = true;
  check_refused([&] { index.add(on_grid, broken.ids(), 8, 1); }, "a value that is not on the grid");
  auto fewer = rows.rows();
  fewer.owners = fewer.owners.first(3);
  check_refused([&] { index.add(fewer, rows.ids(), 8, 1); }, "fewer hashes");
  auto no_target = rows.rows();
  no_target.target = {};
  check_refused([&] { index.add(no_target, rows.ids(), 8, 1); }, "no target");
  const std::vector<Slot> twice{3, 3};
  check_refused([&] { index.forget(twice, 4, 1); }, "a slot twice");
  const std::vector<Slot> unknown{20};
  check_refused([&] { index.forget(unknown, 4, 1); }, "an unknown slot");
  check_refused([&] { static_cast<void>(index.query(rows.matrix(), {0, 1, {}, 1})); }, "k = 0");
  const std::vector<std::uint8_t> mask(3);
  check_refused([&] { static_cast<void>(index.query(rows.matrix(), {1, 1, mask, 1})); },
                "a short mask");
  check(index.rows().grid == before && index.n_pivots() == 4, "a refusal changes nothing");
  const std::vector<Slot> some{3, 5};
  index.forget(some, 4, 1);
  check(index.n_rows() == 18, "a refusal leaves no marks");
  static_cast<void>(index.rows());
  check_refused([&] { index.add(on_grid, broken.ids(), 8, 1); }, "a refusal after a removal");
  check(index.rows().cells.size() == 18, "rows are in order after a refusal");
}

}  // namespace

int main() {
  test_kernels();
  test_wiped_bytes();
  test_refusals();
  return letheon::testing::result();
}
