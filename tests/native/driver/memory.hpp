// Memory of exactly so many bytes, placed so that a step outside is noticed.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace headwise::driver {

// Plain memory comes from malloc, which AddressSanitizer watches. It does not see the masked loads and stores of
// AVX-512, which are no memory accesses to the compiler; a page that nobody may touch stops those too, on the side of
// the memory that it lies on.
enum class Place { plain, before_guard, after_guard };

class Memory {
public:
    Memory() = default;
    Memory(std::size_t bytes, Place place) : place_(place) {
        if (place == Place::plain) {
            begin_ = static_cast<std::byte*>(std::malloc(bytes));
            if (begin_ == nullptr && bytes != 0) throw std::bad_alloc();
        } else {
            map_pages(bytes);
        }
        // Not a number in every type, and true: what is not written must not be read.
        if (bytes != 0) std::memset(begin_, 0xff, bytes);
    }
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
        if (place_ == Place::plain) std::free(begin_);
        else munmap(pages_, page_bytes_);
    }

    std::byte* begin() const { return begin_; }

private:
    // One page that nobody may touch, some for the bytes, one more.
    void map_pages(std::size_t bytes) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t inner = (bytes / page + 1) * page;
        page_bytes_ = inner + 2 * page;
        void* const pages = mmap(nullptr, page_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) throw std::bad_alloc();
        pages_ = static_cast<std::byte*>(pages);
        if (mprotect(pages_ + page, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        begin_ = place_ == Place::after_guard ? pages_ + page : pages_ + page + inner - bytes;
    }
    void swap(Memory& other) noexcept {
        std::swap(place_, other.place_);
        std::swap(begin_, other.begin_);
        std::swap(pages_, other.pages_);
        std::swap(page_bytes_, other.page_bytes_);
    }

    Place place_ = Place::plain;
    std::byte *begin_ = nullptr, *pages_ = nullptr;
    std::size_t page_bytes_ = 0;
};

}  // namespace headwise::driver
