// SPDX-License-Identifier: Apache-2.0
// Who holds which elements of which tensor, and how they lie: the one language of both sides.
// Geometry is told once per class over roles; an instance only binds a class to a tensor, its roles
// to ranks and its places to a parameter. Nothing here grows with names times ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/base/fingerprint.h"
#include "crossmesh/catalog/catalog.h"
#include "crossmesh/geometry/box.h"
#include "crossmesh/geometry/space.h"
#include "crossmesh/geometry/view.h"

namespace crossmesh {

// A box of a class's space, and where it lies relative to the instance's place in its parameter.
struct Piece {
  Box box;
  View view;

  bool operator==(const Piece&) const = default;
};

// Geometry over roles. A role is a mesh coordinate; it may hold nothing (an empty shard).
// Invariants: the boxes of one role are disjoint; boxes of two roles may be equal or overlap
// (replicas inside a side).
struct LayoutClass {
  Space space;
  DType dtype = DType::u8;  // of the elements as they lie; views count in it
  std::vector<std::vector<Piece>> pieces_of_role;

  bool operator==(const LayoutClass&) const = default;
};

// Which ranks play which role: role_of_rank[rank], or -1 for a rank that has no part.
// One role may be played by many ranks (replicas), a rank plays at most one.
struct Binding {
  std::vector<int> role_of_rank;

  bool operator==(const Binding&) const = default;
};

// A region of a parameter that no piece fills.
struct Reserve {
  enum class Kind : std::uint8_t {
    fill,     // holds a constant: vocabulary padding
    kept,     // no tensor feeds it and nothing derives it
    derived,  // the engine computes it from other parameters
  };
  Kind kind = Kind::fill;
  int role = 0;  // of the parameter class
  StridedRegion region;
  std::uint64_t value_bits = 0;  // of a fill: one element, in the parameter's dtype
  std::string reason;

  bool operator==(const Reserve&) const = default;
};

// The shape of a parameter on each role, contiguous in row-major order unless strides say
// otherwise.
struct ParameterClass {
  DType dtype = DType::u8;
  std::vector<Shape> shape_of_role;
  std::vector<Strides> strides_of_role;  // as many; Interner fills them in when there are none
  std::vector<Reserve> reserves;

  bool operator==(const ParameterClass&) const = default;
};

// One name on some ranks. Names with the same `storage` are views of one memory (tied weights);
// the first of them owns it.
struct Parameter {
  std::string name;
  int parameter_class = 0;
  int binding = 0;
  int storage = 0;  // index of the owning parameter; its own index when it owns itself

  bool operator==(const Parameter&) const = default;
};

// One tensor's part in one parameter. A tensor may have several (redundant experts).
struct Instance {
  int tensor = 0;
  int parameter = 0;
  int layout_class = 0;
  int binding = 0;
  std::int64_t offset = 0;  // elements, added to every view of the class
  int opaque_reason = -1;   // index into Layout::reasons, or -1: a tensor that takes the fallback;
                            // its pieces are the regions that its loader may write
  bool operator==(const Instance&) const = default;
};

struct Unused {
  std::string name;
  std::string why;

  bool operator==(const Unused&) const = default;
};

struct Layout {
  std::string model = "model";  // which model of a job (main, draft); part of every key
  int rank_count = 0;
  std::vector<int> replica_of_rank;  // the commit unit of each rank; all 0 on a source
  std::vector<TensorInfo> tensors;   // that this side speaks of, with whole shapes; for a target:
                                     // as the checkpoint must have them, dtype as the parameter's
  std::vector<LayoutClass> classes;
  std::vector<Binding> bindings;
  std::vector<ParameterClass> parameter_classes;
  std::vector<Parameter> parameters;
  std::vector<Instance> instances;
  std::vector<std::string> reasons;
  std::vector<Unused> unused;  // tensors that this side does not want, and why (tied twins)

  bool operator==(const Layout&) const = default;
};

// -- Enumerating, on demand ----------------------------------------------------------------------

// The pieces of `tensor` on `rank`, each in its parameter (offsets of the instance added), in the
// order of instances. It reads all instances: for one tensor, not for a loop over all of them.
struct PlacedPiece {
  int instance = 0;
  int parameter = 0;
  Piece piece;
};
std::vector<PlacedPiece> pieces(const Layout& layout, int rank, int tensor);

// Whether `rank` has the parameter, and its local shape and strides there.
// Requires of the latter two: has_parameter.
bool has_parameter(const Layout& layout, int rank, int parameter);
const Shape& local_shape(const Layout& layout, int rank, int parameter);
const Strides& local_strides(const Layout& layout, int rank, int parameter);

// Elements of the storage of a parameter on a role: one past the last that its strides reach.
// Requires: no stride is negative. Throws: limit_exceeded past 63 bits.
std::int64_t storage_elements(const Shape& shape, const Strides& strides);

// -- Identity and text ---------------------------------------------------------------------------

// Ensures: equal for equal values in any process; different when any field differs.
Fingerprint fingerprint(const LayoutClass& value);
Fingerprint fingerprint(const Binding& value);
Fingerprint fingerprint(const ParameterClass& value);

// Of the whole layout, and of all that concerns one tensor (so that a disagreement can name it).
// Those by tensor hold values and no index, so that layouts with other tensors beside it agree.
// Requires: indices are in range.
Fingerprint fingerprint(const Layout& layout);
std::vector<Fingerprint> fingerprints_by_tensor(const Layout& layout);

// Throws: internal naming the first invariant that does not hold: indices in range, ranks match,
// boxes inside their spaces, views inside their parameters.
void check(const Layout& layout);

// A stable text: ranks, classes with boxes and views, then instances grouped by class.
std::string explain(const Layout& layout);

}  // namespace crossmesh
