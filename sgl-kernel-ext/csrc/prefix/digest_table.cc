// SPDX-License-Identifier: Apache-2.0
#include "digest_table.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

namespace prefix {

namespace {

constexpr std::size_t kFirstSlots = 1024;
// Digests whose cache lines are fetched before the first of them is read.
constexpr std::size_t kAhead = 16;
// Slots remembered meanwhile; a power of two above 2 kAhead.
constexpr std::size_t kRing = 64;

std::uint64_t random_odd() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32 | device()) | 1;
}

const unsigned char* at(const char* digests, std::size_t i) {
  return reinterpret_cast<const unsigned char*>(digests) + i * kDigestBytes;
}

}  // namespace

DigestTable::DigestTable(std::size_t max_blocks)
    : max_blocks_(max_blocks),
      // Whoever chooses tokens chooses digests; the multiplier keeps their slots unknown.
      salt_(random_odd()),
      mask_(kFirstSlots - 1),
      index_(kFirstSlots, kEmpty) {
  if (max_blocks < 1 || max_blocks > (std::size_t{1} << 31)) {
    throw std::invalid_argument("max_blocks must be between 1 and 2147483648, not " +
                                std::to_string(max_blocks));
  }
}

std::size_t DigestTable::home(const unsigned char* digest) const {
  std::uint64_t word;
  std::memcpy(&word, digest, sizeof(word));
  return static_cast<std::size_t>((word * salt_) >> 32) & mask_;
}

// The slot that holds the digest, or the empty one where its search ends.
std::size_t DigestTable::find_slot(const unsigned char* wanted) const {
  std::size_t slot = home(wanted);
  while (index_[slot] != kEmpty &&
         std::memcmp(digest(index_[slot]).data(), wanted, kDigestBytes) != 0) {
    slot = (slot + 1) & mask_;
  }
  return slot;
}

std::size_t DigestTable::slot_of(std::size_t entry) const {
  std::size_t slot = home(digest(entry).data());
  while (index_[slot] != entry) slot = (slot + 1) & mask_;
  return slot;
}

// Empties a slot and closes the hole: an entry further on that may stand there moves up.
void DigestTable::vacate(std::size_t slot) {
  std::size_t hole = slot;
  std::size_t next = (slot + 1) & mask_;
  while (index_[next] != kEmpty) {
    const std::size_t wanted = home(digest(index_[next]).data());
    if (((next - wanted) & mask_) >= ((next - hole) & mask_)) {
      index_[hole] = index_[next];
      hole = next;
    }
    next = (next + 1) & mask_;
  }
  index_[hole] = kEmpty;
}

// Forgets the entry of a slot; the last entry takes its place, so that they stay dense.
void DigestTable::erase(std::size_t slot) {
  const std::size_t entry = index_[slot];
  vacate(slot);
  const std::size_t last = size_ - 1;
  if (entry != last) {
    const std::size_t moved = slot_of(last);
    digest(entry) = digest(last);
    flags(entry) = flags(last);
    index_[moved] = static_cast<std::uint32_t>(entry);
  }
  size_ = last;
  // One spare piece, so that a size that swings around its edge does not allocate.
  while (pieces_.size() > (size_ >> kPieceBits) + 2) pieces_.pop_back();
}

// Forgets an entry and returns its place. The hand goes on past it, so that what is put there is
// the last that it comes to again.
std::size_t DigestTable::evict_one() {
  for (;;) {
    if (hand_ >= size_) hand_ = 0;
    const std::size_t entry = hand_++;
    std::uint8_t& flag = flags(entry);
    if (flag & kReferenced) {
      flag &= kTiers;
      continue;
    }
    vacate(slot_of(entry));
    ++evicted_;
    return entry;
  }
}

void DigestTable::grow() {
  std::vector<std::uint32_t> larger((mask_ + 1) * 2, kEmpty);
  index_.swap(larger);
  mask_ = index_.size() - 1;
  for (std::size_t entry = 0; entry < size_; ++entry) {
    std::size_t slot = home(digest(entry).data());
    while (index_[slot] != kEmpty) slot = (slot + 1) & mask_;
    index_[slot] = static_cast<std::uint32_t>(entry);
  }
}

std::size_t DigestTable::store(const char* digests, std::size_t count, std::uint8_t tier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(&index_[home(at(digests, i + kAhead))]);
    const unsigned char* wanted = at(digests, i);
    std::size_t slot = find_slot(wanted);
    if (index_[slot] != kEmpty) {
      flags(index_[slot]) |= tier;
      continue;
    }
    std::size_t entry = size_;
    if (size_ >= max_blocks_) {
      entry = evict_one();
      slot = find_slot(wanted);
    } else {
      if ((size_ + 1) * 5 > (mask_ + 1) * 4) {
        grow();
        slot = find_slot(wanted);
      }
      if ((size_ >> kPieceBits) == pieces_.size()) pieces_.push_back(std::make_unique<Piece>());
      ++size_;
    }
    std::memcpy(digest(entry).data(), wanted, kDigestBytes);
    flags(entry) = tier;
    index_[slot] = static_cast<std::uint32_t>(entry);
    ++fresh;
  }
  return fresh;
}

std::size_t DigestTable::remove(const char* digests, std::size_t count, std::uint8_t tier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t gone = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(&index_[home(at(digests, i + kAhead))]);
    const std::size_t slot = find_slot(at(digests, i));
    if (index_[slot] == kEmpty) continue;
    std::uint8_t& flag = flags(index_[slot]);
    flag &= static_cast<std::uint8_t>(~tier);
    if ((flag & kTiers) == 0) {
      erase(slot);
      ++gone;
    }
  }
  return gone;
}

std::size_t DigestTable::longest_prefix(const char* digests, std::size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Three steps at once: digest i's index line is asked for, digest i - kAhead's entry, and
  // digest i - 2 kAhead is compared, so that none waits for memory.
  std::size_t slots[kRing];
  for (std::size_t i = 0; i < count + 2 * kAhead; ++i) {
    if (i < count) {
      slots[i % kRing] = home(at(digests, i));
      __builtin_prefetch(&index_[slots[i % kRing]]);
    }
    if (i >= kAhead && i - kAhead < count) {
      const std::uint32_t entry = index_[slots[(i - kAhead) % kRing]];
      if (entry != kEmpty) {
        __builtin_prefetch(digest(entry).data());
        __builtin_prefetch(&flags(entry));
      }
    }
    if (i < 2 * kAhead) continue;
    const std::size_t now = i - 2 * kAhead;
    const unsigned char* wanted = at(digests, now);
    std::size_t slot = slots[now % kRing];
    while (index_[slot] != kEmpty &&
           std::memcmp(digest(index_[slot]).data(), wanted, kDigestBytes) != 0) {
      slot = (slot + 1) & mask_;
    }
    if (index_[slot] == kEmpty) return now;
    std::uint8_t& flag = flags(index_[slot]);
    if (!(flag & kReferenced)) flag |= kReferenced;
  }
  return count;
}

std::string DigestTable::tiers(const char* digests, std::size_t count) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string out(count, '\0');
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t slot = find_slot(at(digests, i));
    if (index_[slot] != kEmpty) out[i] = static_cast<char>(flags(index_[slot]) & kTiers);
  }
  return out;
}

void DigestTable::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_ = 0;
  hand_ = 0;
  pieces_.clear();
  mask_ = kFirstSlots - 1;
  std::vector<std::uint32_t>(kFirstSlots, kEmpty).swap(index_);
}

std::size_t DigestTable::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return size_;
}

std::size_t DigestTable::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sizeof(*this) + index_.capacity() * sizeof(std::uint32_t) +
         pieces_.size() * sizeof(Piece) + pieces_.capacity() * sizeof(pieces_[0]);
}

std::uint64_t DigestTable::evicted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return evicted_;
}

void DigestTable::dump(std::string& digests, std::string& tiers) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  digests.resize(size_ * kDigestBytes);
  tiers.resize(size_);
  for (std::size_t entry = 0; entry < size_; ++entry) {
    std::memcpy(&digests[entry * kDigestBytes], digest(entry).data(), kDigestBytes);
    tiers[entry] = static_cast<char>(flags(entry) & kTiers);
  }
}

}  // namespace prefix
