// Memory whose pages are returned to the system when it is no longer used, so that nothing of it
// stays in the heap; on request it is a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace letheon::index {

class Slab {
 public:
  // Bytes of a file before the contents: a header of the safetensors format.
  static constexpr std::size_t kHeader = 4096;

  Slab() = default;
  // A file that exists as long as this object; it replaces a file of that name. Throws
  // std::system_error.
  explicit Slab(const std::string& path);
  Slab(Slab&& other) noexcept { swap(other); }
  Slab& operator=(Slab&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Slab();

  // Adds zeros behind the contents. Throws std::bad_alloc or std::system_error, and has changed
  // nothing then.
  void grow(std::size_t size);
  // Returns when all changes of the file are on disk. Throws std::system_error.
  void sync() const;
  void swap(Slab& other) noexcept;

  [[nodiscard]] std::uint8_t* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  void write_header(std::uint8_t* start, std::size_t size) const;

  std::string path_;
  int file_ = -1;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace letheon::index
