#include "letheon/index/slab.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#if __has_include(<sys/mman.h>)
#define LETHEON_MAPS
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace letheon::index {

void Slab::swap(Slab& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

void Slab::write_header(std::uint8_t* start, std::size_t size) const {
  const std::string n = std::to_string(size);
  const std::string text = R"({"__metadata__":{"format":"letheon-index-cells"},"cells":{"dtype":"U8",)"
                           R"("shape":[)" +
                           n + R"(],"data_offsets":[0,)" + n + "]}}";
  const std::uint64_t length = kHeader - 8;
  for (std::size_t k = 0; k < 8; ++k) {
    start[k] = static_cast<std::uint8_t>(length >> (8 * k));
  }
  std::memset(start + 8, ' ', length);
  std::memcpy(start + 8, text.data(), text.size());
}

#ifdef LETHEON_MAPS

namespace {

// The first size: an empty mapping is not allowed.
constexpr std::size_t kStep = 4096;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Slab::Slab(const std::string& path) {
  if (path.empty()) {
    return;
  }
  const std::string fresh = path + ".new";
  file_ = ::open(fresh.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0) {
    fail("the file of an index could not be created: " + fresh);
  }
  path_ = path;
  try {
    grow(kStep);
    if (std::rename(fresh.c_str(), path.c_str()) != 0) {
      fail("the file of an index could not be created: " + path);
    }
  } catch (...) {
    ::unlink(fresh.c_str());
    ::close(file_);
    throw;
  }
}

Slab::~Slab() {
  const std::size_t head = file_ < 0 ? 0 : kHeader;
  if (data_ != nullptr && file_ >= 0) {
    // The blocks of a file that is removed keep their contents on the disk.
    std::fill_n(data_, size_, std::uint8_t{0});
    ::msync(data_ - head, size_ + head, MS_SYNC);
  }
  if (data_ != nullptr) {
    ::munmap(data_ - head, size_ + head);
  }
  if (file_ >= 0) {
    struct stat own = {};
    struct stat named = {};
    // Another index may have replaced the file.
    if (::fstat(file_, &own) == 0 && ::stat(path_.c_str(), &named) == 0 &&
        own.st_ino == named.st_ino && own.st_dev == named.st_dev) {
      ::unlink(path_.c_str());
    }
    ::close(file_);
  }
}

void Slab::grow(std::size_t size) {
  if (size <= size_) {
    return;
  }
  const std::size_t head = file_ < 0 ? 0 : kHeader;
  const int flags = file_ < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(size + head)) != 0) {
    fail("the file of an index could not grow");
  }
  void* start = ::mmap(nullptr, size + head, PROT_READ | PROT_WRITE, flags, file_, 0);
  if (start == MAP_FAILED) {
    throw std::bad_alloc();
  }
  auto* bytes = static_cast<std::uint8_t*>(start);
  if (file_ >= 0) {
    write_header(bytes, size);
  }
  if (data_ != nullptr) {
    if (file_ < 0) {
      std::memcpy(bytes, data_, size_);
    }
    ::munmap(data_ - head, size_ + head);
  }
  data_ = bytes + head;
  size_ = size;
}

void Slab::sync() const {
  if (file_ >= 0 && ::msync(data_ - kHeader, size_ + kHeader, MS_SYNC) != 0) {
    fail("the file of an index could not be written");
  }
}

#else

Slab::Slab(const std::string& path) {
  if (!path.empty()) {
    throw std::invalid_argument("this system has no mapped files; pass file=None");
  }
}

Slab::~Slab() {
  std::fill_n(data_, size_, std::uint8_t{0});
  delete[] data_;
}

void Slab::grow(std::size_t size) {
  if (size <= size_) {
    return;
  }
  auto* bytes = new std::uint8_t[size]();
  std::copy_n(data_, size_, bytes);
  std::fill_n(data_, size_, std::uint8_t{0});
  delete[] data_;
  data_ = bytes;
  size_ = size;
}

void Slab::sync() const {}

#endif

}  // namespace letheon::index
