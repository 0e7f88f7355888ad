// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "digest_table.h"

namespace nb = nanobind;
using prefix::DigestTable;

namespace {

std::size_t count_of(const nb::bytes& digests) {
  if (digests.size() % prefix::kDigestBytes != 0) {
    throw std::invalid_argument("digests must be a multiple of 32 bytes, not " +
                                std::to_string(digests.size()));
  }
  return digests.size() / prefix::kDigestBytes;
}

std::uint8_t tier_of(unsigned tier) {
  if (tier == 0 || tier > prefix::kTiers) {
    throw std::invalid_argument("tier must be between 1 and 127, not " + std::to_string(tier));
  }
  return static_cast<std::uint8_t>(tier);
}

}  // namespace

NB_MODULE(_prefix, m) {
  // Reader threads may hold tables when the interpreter ends.
  nb::set_leak_warnings(false);
  nb::class_<DigestTable>(m, "DigestTable")
      .def(nb::init<std::size_t>(), nb::arg("max_blocks"))
      .def("store",
           [](DigestTable& self, nb::bytes digests, unsigned tier) {
             const std::size_t count = count_of(digests);
             const std::uint8_t bits = tier_of(tier);
             const char* data = digests.c_str();
             nb::gil_scoped_release release;
             return self.store(data, count, bits);
           })
      .def("remove",
           [](DigestTable& self, nb::bytes digests, unsigned tier) {
             const std::size_t count = count_of(digests);
             const std::uint8_t bits = tier_of(tier);
             const char* data = digests.c_str();
             nb::gil_scoped_release release;
             return self.remove(data, count, bits);
           })
      .def("longest_prefix",
           [](DigestTable& self, nb::bytes digests) {
             const std::size_t count = count_of(digests);
             const char* data = digests.c_str();
             nb::gil_scoped_release release;
             return self.longest_prefix(data, count);
           })
      .def("tiers",
           [](const DigestTable& self, nb::bytes digests) {
             const std::size_t count = count_of(digests);
             std::string out;
             {
               const char* data = digests.c_str();
               nb::gil_scoped_release release;
               out = self.tiers(data, count);
             }
             return nb::bytes(out.data(), out.size());
           })
      .def("clear",
           [](DigestTable& self) {
             nb::gil_scoped_release release;
             self.clear();
           })
      .def("dump",
           [](const DigestTable& self) {
             std::string digests, tiers;
             {
               nb::gil_scoped_release release;
               self.dump(digests, tiers);
             }
             return nb::make_tuple(nb::bytes(digests.data(), digests.size()),
                                   nb::bytes(tiers.data(), tiers.size()));
           })
      .def("__len__", &DigestTable::size)
      .def_prop_ro("nbytes", &DigestTable::bytes)
      .def_prop_ro("evicted", &DigestTable::evicted);
}
