// The only file that knows nanobind: arrays in, arrays out, no rule of its own.
//
// Arguments are never converted (a silent cast would change hashes), and the GIL is released while
// the core works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>

#include "letheon/keyed_hash.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Hashes = nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<1>>;

template <typename T>
std::span<const T> view(const Input<T>& array) {
  return {array.data(), array.shape(0)};
}

letheon::Bytes view(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

letheon::Key key_of(const nb::bytes& bytes) {
  const letheon::Bytes raw = view(bytes);
  if (raw.size() != 16) {
    throw std::invalid_argument("the key must have 16 bytes");
  }
  return letheon::Key::from_bytes(raw.first<16>());
}

// Runs `fill` on a fresh buffer without the GIL and hands the buffer to NumPy.
template <typename Fill>
Hashes filled(std::size_t size, Fill fill) {
  auto buffer = std::make_unique<std::uint64_t[]>(size);
  {
    nb::gil_scoped_release release;
    fill(std::span<std::uint64_t>(buffer.get(), size));
  }
  std::uint64_t* data = buffer.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::uint64_t*>(p); });
  static_cast<void>(buffer.release());  // the capsule owns it now
  return Hashes(data, {size}, owner);
}

std::uint64_t siphash24(const nb::bytes& key, const nb::bytes& message) {
  const letheon::Key parsed = key_of(key);
  const letheon::Bytes bytes = view(message);
  nb::gil_scoped_release release;
  return letheon::siphash24(parsed, bytes);
}

Hashes hash_ints(const nb::bytes& key, const nb::bytes& prefix, const Input<std::int64_t>& values) {
  const letheon::Key parsed = key_of(key);
  const letheon::Bytes head = view(prefix);
  return filled(values.shape(0),
                [&](auto out) { letheon::hash_ints(parsed, head, view(values), out); });
}

Hashes hash_texts(const nb::bytes& key, const nb::bytes& prefix, const Input<std::uint8_t>& blob,
                  const Input<std::int64_t>& offsets) {
  const letheon::Key parsed = key_of(key);
  const letheon::Bytes head = view(prefix);
  if (offsets.shape(0) == 0) {
    throw std::invalid_argument("n texts need n + 1 offsets");
  }
  return filled(offsets.shape(0) - 1, [&](auto out) {
    letheon::hash_texts(parsed, head, view(blob), view(offsets), out);
  });
}

Hashes mix64(std::uint64_t key, const Input<std::uint64_t>& bits) {
  const auto values = view(bits);
  return filled(values.size(), [&](auto out) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      out[k] = letheon::mix64(key, values[k]);
    }
  });
}

Hashes mix64_pairs(const Input<std::uint64_t>& keys, const Input<std::uint64_t>& bits) {
  const auto left = view(keys);
  const auto right = view(bits);
  if (left.size() != right.size()) {
    throw std::invalid_argument("one key per value is needed");
  }
  return filled(right.size(), [&](auto out) {
    for (std::size_t k = 0; k < right.size(); ++k) {
      out[k] = letheon::mix64(left[k], right[k]);
    }
  });
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled core of letheon; private. See letheon.seeds for the rules.";
  m.def("siphash24", &siphash24, "key"_a.noconvert(), "message"_a.noconvert(),
        "SipHash-2-4 of one message under a key of 16 bytes.");
  m.def("hash_ints", &hash_ints, "key"_a.noconvert(), "prefix"_a.noconvert(),
        "values"_a.noconvert(), "SipHash-2-4 of the prefix followed by each framed int.");
  m.def("hash_texts", &hash_texts, "key"_a.noconvert(), "prefix"_a.noconvert(),
        "blob"_a.noconvert(), "offsets"_a.noconvert(),
        "SipHash-2-4 of the prefix followed by each framed text.");
  m.def("mix64", &mix64, "key"_a.noconvert(), "bits"_a.noconvert(),
        "Mix each value with one key.");
  m.def("mix64_pairs", &mix64_pairs, "keys"_a.noconvert(), "bits"_a.noconvert(),
        "Mix each value with its own key.");
}
