// SPDX-License-Identifier: Apache-2.0
// The plain parameters against layouts recorded from vLLM: every element of every parameter. The
// recorded chains of operations are evaluated here on lists of element numbers.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "cli/plain_loader.h"
#include "crossmesh/base/error.h"
#include "tests/golden.h"

namespace crossmesh::cli {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<std::int64_t>;

std::int64_t product(const Numbers& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Element i of the tensor that is numbered n by its name's place.
std::int64_t element_of(std::int64_t tensor_number, std::int64_t index) {
  return (tensor_number + 1) * 10'000'000 + index;
}

struct Array {
  Numbers shape;
  Numbers elements;
};

// Indices [first, first + count) of a dimension.
Array narrow(const Array& array, std::size_t dim, std::int64_t first, std::int64_t count) {
  Array result{array.shape, {}};
  result.shape[dim] = count;
  const std::int64_t inner =
      product({array.shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, array.shape.end()});
  const auto total = static_cast<std::int64_t>(array.elements.size());
  for (std::int64_t i = 0; i < total; ++i) {
    const std::int64_t index = i / inner % array.shape[dim];
    if (index >= first && index < first + count) {
      result.elements.push_back(array.elements[static_cast<std::size_t>(i)]);
    }
  }
  return result;
}

Array evaluate(Array array, const Json& chain) {
  for (const Json& step : chain) {
    const std::string name = step.at(0);
    const Json& arguments = step.at(1);
    if (name == "narrow") {
      array = narrow(array, arguments.at(0), arguments.at(1), arguments.at(2));
    } else if (name == "unsqueeze") {
      EXPECT_EQ(arguments, Json::array({0}));
      array.shape.insert(array.shape.begin(), 1);
    } else if (name == "__getitem__") {  // of what unbind left as it was
      array = narrow(array, 0, arguments.at(0), 1);
      array.shape.erase(array.shape.begin());
    } else {
      EXPECT_EQ(name, "unbind");
    }
  }
  return array;
}

using Images = std::map<std::string, Numbers>;  // by parameter; -1 where nothing was written

struct Recorded {
  Images images;
  std::map<std::string, Numbers> shape_by_parameter;
  std::map<std::string, Numbers> shape_by_tensor;
};

void write_region(Numbers& image, const Json& line, const Numbers& values) {
  const Numbers shape = line.at("shape");
  const Numbers strides = line.at("strides");
  ASSERT_EQ(product(shape), static_cast<std::int64_t>(values.size()));
  for (std::int64_t i = 0; i < product(shape); ++i) {
    std::int64_t at = line.at("offset");
    std::int64_t rest = i;
    for (std::size_t dim = shape.size(); dim-- > 0; rest /= shape[dim]) {
      at += rest % shape[dim] * strides[dim];
    }
    std::int64_t& element = image.at(static_cast<std::size_t>(at));
    EXPECT_EQ(element, -1);
    element = values[static_cast<std::size_t>(i)];
  }
}

Recorded read_recorded(const std::vector<Json>& lines) {
  Recorded recorded;
  for (const Json& line : lines) {
    if (line.at("kind") != "scatter") continue;
    recorded.shape_by_tensor[line.at("source")] = line.at("source_shape").get<Numbers>();
    const Numbers shape = line.at("parameter_shape");
    recorded.shape_by_parameter[line.at("parameter")] = shape;
    recorded.images[line.at("parameter")].assign(static_cast<std::size_t>(product(shape)), -1);
  }
  for (const Json& line : lines) {
    Numbers values(static_cast<std::size_t>(product(line.at("shape"))), 0);
    if (line.at("kind") == "scatter") {
      const auto tensor = recorded.shape_by_tensor.find(line.at("source").get<std::string>());
      const auto number = std::distance(recorded.shape_by_tensor.begin(), tensor);
      Array whole{tensor->second, Numbers(static_cast<std::size_t>(product(tensor->second)))};
      std::iota(whole.elements.begin(), whole.elements.end(), element_of(number, 0));
      values = evaluate(whole, line.at("chain")).elements;
    }
    write_region(recorded.images.at(line.at("parameter")), line, values);
  }
  return recorded;
}

// A checkpoint of the recorded tensors, numbered as above.
PlainCheckpoint checkpoint_of(const Recorded& recorded) {
  PlainCheckpoint checkpoint;
  for (const auto& [name, shape] : recorded.shape_by_tensor) {
    checkpoint.tensors[name] = {DType::i64, shape};
  }
  checkpoint.read_rows = [&recorded](std::string_view name, std::int64_t first_row,
                                     std::int64_t row_count, std::span<std::byte> rows) {
    const auto tensor = recorded.shape_by_tensor.find(std::string(name));
    const auto number = std::distance(recorded.shape_by_tensor.begin(), tensor);
    const std::int64_t columns = columns_of(tensor->second);
    Numbers values(static_cast<std::size_t>(row_count * columns));
    std::iota(values.begin(), values.end(), element_of(number, first_row * columns));
    ASSERT_EQ(rows.size(), values.size() * sizeof(std::int64_t));
    std::memcpy(rows.data(), values.data(), rows.size());
  };
  return checkpoint;
}

Images load_all(const PlainLoader& loader, const PlainCheckpoint& checkpoint) {
  Images images;
  for (const PlainParameter& parameter : loader.parameters()) {
    Numbers& image = images[parameter.name];
    image.assign(static_cast<std::size_t>(product(parameter.shape)), -1);
    for (const std::string& tensor : loader.tensors_of(parameter.name)) {
      loader.load(parameter.name, tensor, checkpoint, std::as_writable_bytes(std::span(image)));
    }
    EXPECT_EQ(
        loader.compare(parameter.name, checkpoint, std::as_bytes(std::span(image))).first_different,
        -1);
  }
  return images;
}

PlainSpread spread_of(const std::string& placement) {
  if (placement == "linear") return PlainSpread::linear;
  return placement.empty() ? PlainSpread::cut : PlainSpread::round_robin;
}

// The lines hold the first layer of each kind: the dense one and one with experts.
std::int64_t recorded_layers(const std::string& family) {
  return family.starts_with("deepseek") ? 2 : 1;
}

TEST(PlainParameters, equal_the_recorded_layouts) {
  std::map<std::pair<std::string, int>, Json> configs;
  std::map<std::tuple<std::string, int, int, int, std::string>, std::vector<Json>> lines_of_rank;
  std::istringstream file(test_data("golden_plain.jsonl"));
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    const std::string family = line.at("family");
    if (line.at("kind") == "config") {
      Json& config = configs[{family, line.at("vocab")}] = line.at("config");
      config["num_hidden_layers"] = recorded_layers(family);
    } else {
      lines_of_rank[{family, line.at("vocab"), line.at("tp"), line.at("rank"),
                     line.value("expert_placement", "")}]
          .push_back(line);
    }
  }
  ASSERT_EQ(lines_of_rank.size(), 9U);
  for (const auto& [key, lines] : lines_of_rank) {
    const auto& [family, vocab, tp, rank, placement] = key;
    SCOPED_TRACE(fmt::format("{}/{} tp {} rank {} {}", family, vocab, tp, rank, placement));
    const std::string config = configs.at({family, vocab}).dump();
    // Elements are numbers here, so every parameter is of one dtype that holds them.
    std::vector<PlainParameter> parameters = plain_parameters(
        {.config_json = config, .tp = tp, .tp_rank = rank, .spread = spread_of(placement)});
    for (PlainParameter& parameter : parameters) parameter.dtype = DType::i64;
    const PlainLoader loader(std::move(parameters));
    const Recorded recorded = read_recorded(lines);
    std::map<std::string, Numbers> shapes;
    for (const PlainParameter& parameter : loader.parameters()) {
      shapes[parameter.name] = parameter.shape;
    }
    EXPECT_EQ(shapes, recorded.shape_by_parameter);
    EXPECT_EQ(load_all(loader, checkpoint_of(recorded)), recorded.images);
  }
}

}  // namespace
}  // namespace crossmesh::cli
