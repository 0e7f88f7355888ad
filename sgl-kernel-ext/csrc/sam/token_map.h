// SPDX-License-Identifier: Apache-2.0
// Open-addressing hash table from (state, token) to a 32-bit value.
#pragma once

#include <cstdint>
#include <cstddef>
#include <vector>

namespace sam {

constexpr uint32_t kNone = 0xffffffffu;

// Linear probing, no deletion, load at most 3/4. Sizes are not powers of two, so that a table
// reserved for a prompt of known length wastes nothing; growth is by one half.
class TokenMap {
 public:
  // Value of (a, b), or nullptr. The pointer is valid until the next insertion.
  uint32_t* find(uint32_t a, uint32_t b) {
    if (slots_.empty()) return nullptr;
    size_t i = home(a, b);
    while (slots_[i].value != kNone) {
      if (slots_[i].a == a && slots_[i].b == b) return &slots_[i].value;
      if (++i == slots_.size()) i = 0;
    }
    return nullptr;
  }

  uint32_t get(uint32_t a, uint32_t b) const {
    const uint32_t* value = const_cast<TokenMap*>(this)->find(a, b);
    return value ? *value : kNone;
  }

  // (a, b) must be absent; value must not be kNone.
  void insert(uint32_t a, uint32_t b, uint32_t value) {
    if ((used_ + 1) * 4 > slots_.size() * 3) resize(slots_.size() + slots_.size() / 2 + 16);
    place({a, b, value});
    ++used_;
  }

  void reserve(size_t entries) {
    const size_t wanted = entries + entries / 3 + 16;
    if (wanted > slots_.size()) resize(wanted);
  }

  size_t size() const { return used_; }
  size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t a = 0, b = 0, value = kNone;
  };

  size_t home(uint32_t a, uint32_t b) const {
    uint64_t h = (static_cast<uint64_t>(a) << 32 | b) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    return static_cast<size_t>(((h >> 32) * slots_.size()) >> 32);
  }

  void place(const Slot& slot) {
    size_t i = home(slot.a, slot.b);
    while (slots_[i].value != kNone) {
      if (++i == slots_.size()) i = 0;
    }
    slots_[i] = slot;
  }

  void resize(size_t size) {
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value != kNone) place(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace sam
