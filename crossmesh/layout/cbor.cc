// SPDX-License-Identifier: Apache-2.0
// The library's CBOR reader recurses once per level, so depth and lengths are walked first, without
// recursion and without building anything.
#include <string_view>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/wire.h"

namespace crossmesh {
namespace {

// The major types of RFC 8949, section 3.1.
enum class Major { natural, negative, bytes, text, array, map, tag, simple };

struct Head {
  Major major;
  int info;  // the low five bits: the argument itself, or how it follows
  std::uint64_t argument;
};

class Walker {
 public:
  explicit Walker(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  // Throws: corrupt_file when the bytes are not exactly one item within the depth.
  void walk(int depth_max) {
    std::vector<std::uint64_t> items_left{1};  // by level
    while (!items_left.empty()) {
      if (items_left.back() == 0) {
        items_left.pop_back();
        continue;
      }
      --items_left.back();
      const std::uint64_t children = read_item();
      if (children == 0) continue;
      if (items_left.size() > static_cast<std::size_t>(depth_max)) {
        throw refuse("an item lies too deep").with("limit", depth_max);
      }
      items_left.push_back(children);
    }
    if (at_ != bytes_.size()) throw refuse("there are bytes past the end");
  }

 private:
  Error refuse(std::string_view what) const {
    return Error(ErrorCode::corrupt_file, fmt::format("read cbor: {}", what))
        .with("offset", at_)
        .with("bytes", bytes_.size());
  }

  std::size_t left() const { return bytes_.size() - at_; }

  std::uint64_t take(std::size_t count) {
    if (left() < count) throw refuse("it ends early");
    std::uint64_t value = 0;
    for (; count > 0; --count) value = value << 8 | bytes_[at_++];
    return value;
  }

  Head take_head() {
    const int first = static_cast<int>(take(1));
    Head head{static_cast<Major>(first >> 5), first & 31, static_cast<std::uint64_t>(first & 31)};
    if (head.info >= 28) throw refuse("an item has no length");
    if (head.info >= 24) head.argument = take(std::size_t{1} << (head.info - 24));
    return head;
  }

  // Skips one item's own bytes. Returns how many items it holds.
  std::uint64_t read_item() {
    const Head head = take_head();
    switch (head.major) {
      case Major::natural:
      case Major::negative:
        return 0;
      case Major::text:
        if (head.argument > left()) throw refuse("it ends early");
        at_ += static_cast<std::size_t>(head.argument);
        return 0;
      case Major::array:
        if (head.argument > left()) throw refuse("it ends early");
        return head.argument;
      case Major::map:
        if (head.argument > left() / 2) throw refuse("it ends early");
        return 2 * head.argument;
      case Major::simple:
        // false, true, null, and floats of 2, 4 and 8 bytes.
        if ((head.info >= 20 && head.info <= 22) || head.info >= 25) return 0;
        break;
      case Major::bytes:
      case Major::tag:
        break;
    }
    throw refuse("an item is of a kind that JSON lacks");
  }

  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace

nlohmann::json json_from_cbor(std::span<const std::uint8_t> bytes, int depth_max) {
  Walker(bytes).walk(depth_max);
  try {
    return nlohmann::json::from_cbor(bytes.begin(), bytes.end());
  } catch (const nlohmann::json::exception& error) {
    // What the walk leaves to find: a key that is not a text.
    throw Error(ErrorCode::corrupt_file, "read cbor: it is not JSON").with("cause", error.what());
  }
}

}  // namespace crossmesh
