// SPDX-License-Identifier: Apache-2.0
// A bounded set of 32-byte digests, each with the tiers that hold it.
//
// Entries lie densely, 33 bytes each, in pieces that never move; an index of 4-byte entry numbers
// finds them (open addressing, linear probing, at most 4/5 full). So a block costs 38 to 43 bytes,
// and growing never copies entries. When the bound is reached, a clock hand gives up an entry that
// was not found by a look-up since the hand last passed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace prefix {

constexpr std::size_t kDigestBytes = 32;
// Tiers are the bits 0 to 6; the top bit is the clock's.
constexpr std::uint8_t kReferenced = 0x80;
constexpr std::uint8_t kTiers = 0x7f;

class DigestTable {
 public:
  // Raises std::invalid_argument unless 1 <= max_blocks <= 2^31.
  explicit DigestTable(std::size_t max_blocks);

  // Notes that `tier` (one or more tier bits) holds `count` digests. Returns how many are new.
  std::size_t store(const char* digests, std::size_t count, std::uint8_t tier);
  // Takes `tier` away from them. Returns how many no tier holds any more; unknown ones are ignored.
  std::size_t remove(const char* digests, std::size_t count, std::uint8_t tier);
  // Number of leading digests that some tier holds; they count as used.
  std::size_t longest_prefix(const char* digests, std::size_t count);
  // The tiers of each digest, 0 for an unknown one. No use is counted.
  std::string tiers(const char* digests, std::size_t count) const;
  void clear();

  std::size_t size() const;
  std::size_t bytes() const;
  std::uint64_t evicted() const;
  // All digests, one after the other, and their tiers, in the same order.
  void dump(std::string& digests, std::string& tiers) const;

 private:
  using Digest = std::array<unsigned char, kDigestBytes>;
  static constexpr std::size_t kPieceBits = 12;
  static constexpr std::size_t kPiece = std::size_t{1} << kPieceBits;
  static constexpr std::uint32_t kEmpty = 0xffffffffu;

  struct Piece {
    Digest digests[kPiece];
    std::uint8_t flags[kPiece];
  };

  const Digest& digest(std::size_t entry) const {
    return pieces_[entry >> kPieceBits]->digests[entry & (kPiece - 1)];
  }
  Digest& digest(std::size_t entry) {
    return pieces_[entry >> kPieceBits]->digests[entry & (kPiece - 1)];
  }
  std::uint8_t& flags(std::size_t entry) {
    return pieces_[entry >> kPieceBits]->flags[entry & (kPiece - 1)];
  }
  std::uint8_t flags(std::size_t entry) const {
    return pieces_[entry >> kPieceBits]->flags[entry & (kPiece - 1)];
  }
  std::size_t home(const unsigned char* digest) const;
  std::size_t find_slot(const unsigned char* digest) const;
  std::size_t slot_of(std::size_t entry) const;
  void vacate(std::size_t slot);
  void erase(std::size_t slot);
  std::size_t evict_one();
  void grow();

  const std::size_t max_blocks_;
  const std::uint64_t salt_;
  std::size_t size_ = 0;
  std::size_t hand_ = 0;
  std::uint64_t evicted_ = 0;
  std::size_t mask_;
  std::vector<std::uint32_t> index_;
  std::vector<std::unique_ptr<Piece>> pieces_;
  mutable std::mutex mutex_;
};

}  // namespace prefix
