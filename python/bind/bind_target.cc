// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "crossmesh/target/config.h"
#include "crossmesh/target/family.h"
#include "python/bind/bind.h"
#include "python/bind/catalog_like.h"
#include "python/bind/convert.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

template <>
struct Words<ExpertForm> {
  static constexpr auto kLiteral = nb::detail::const_name("typing.Literal['each', 'stacked']");
  static constexpr std::string_view kWhat = "expert form";
  static constexpr std::pair<std::string_view, ExpertForm> kWords[] = {
      {"each", ExpertForm::each}, {"stacked", ExpertForm::stacked}};
};

namespace {

EngineOptions options_of(const std::optional<DTypeOrName>& parameter_dtype,
                         std::vector<std::vector<int>> expert_of_slot) {
  EngineOptions options;
  if (parameter_dtype) options.parameter_dtype = dtype_of(*parameter_dtype);
  options.expert_of_slot = std::move(expert_of_slot);
  return options;
}

void bind_config(nb::module_& m) {
  nb::class_<ModelConfig> config(m, "ModelConfig",
                                 "The facts of a config.json that decide how an engine lays a "
                                 "model. Sizes are in elements.");
  config.def_ro("architecture", &ModelConfig::architecture)
      .def_ro("model_type", &ModelConfig::model_type)
      .def_ro("dtype", &ModelConfig::dtype)
      .def_ro("hidden", &ModelConfig::hidden)
      .def_ro("intermediate", &ModelConfig::intermediate)
      .def_ro("layers", &ModelConfig::layers)
      .def_ro("heads", &ModelConfig::heads)
      .def_ro("kv_heads", &ModelConfig::kv_heads)
      .def_ro("head_size", &ModelConfig::head_size)
      .def_ro("vocab", &ModelConfig::vocab)
      .def_ro("tied_embeddings", &ModelConfig::tied_embeddings)
      .def_ro("attention_bias", &ModelConfig::attention_bias)
      .def_ro("mlp_bias", &ModelConfig::mlp_bias)
      .def_ro("experts", &ModelConfig::experts, "0: every layer is dense.")
      .def_ro("expert_intermediate", &ModelConfig::expert_intermediate)
      .def_ro("shared_experts", &ModelConfig::shared_experts)
      .def_ro("expert_groups", &ModelConfig::expert_groups)
      .def_ro("router_bias", &ModelConfig::router_bias)
      .def_ro("sparse_layer", &ModelConfig::sparse_layer, "Whether each layer has experts.")
      .def_ro("prediction_layers", &ModelConfig::prediction_layers)
      .def_ro("query_rank", &ModelConfig::query_rank)
      .def_ro("latent", &ModelConfig::latent, "0: there is no latent attention.")
      .def_ro("plain_head_size", &ModelConfig::plain_head_size)
      .def_ro("rotary_head_size", &ModelConfig::rotary_head_size)
      .def_ro("value_head_size", &ModelConfig::value_head_size)
      .def_ro("scale_block", &ModelConfig::scale_block, "0: it is not quantised.");
  compare(config);
  show(config, [](const ModelConfig& c) {
    return Facts{fact("model_type", c.model_type), fact("layers", c.layers),
                 fact("hidden", c.hidden), fact("heads", c.heads), fact("dtype", name_of(c.dtype))};
  });
  m.def("parse_config", &parse_config, "json_text"_a,
        R"(Reads the text of a Hugging Face config.json.

Raises:
    crossmesh.Error: corrupt_file: it is no config, or lacks something; unsupported: an unknown
        family, dtype or quantisation; mismatch: impossible numbers.

Example:
    >>> crossmesh.parse_config(config_text)
    ModelConfig(model_type=llama, layers=2, hidden=40, heads=4, dtype=BF16)
)");
}

void bind_forms(nb::module_& m) {
  m.def(
      "families",
      [] {
        std::vector<std::string> names;
        for (const Family& family : families()) names.emplace_back(family.model_type);
        return names;
      },
      R"(Returns the families of models that are known, by model_type.

Example:
    >>> "qwen3" in crossmesh.families()
    True
)");
  m.def(
      "tensors_of",
      [](const ModelConfig& config, const Word<ExpertForm>& expert_form) {
        return Catalog{tensors_of(family_of(config, expert_form.get()), config)};
      },
      "config"_a, "expert_form"_a = "each",
      R"(Returns the catalog that a checkpoint of this config has.

Args:
    config: Of the model.
    expert_form: `"each"`: a matrix for each projection of each expert; `"stacked"`: two tensors
        for all experts of a layer.

Raises:
    crossmesh.Error: unsupported: the family is not known in this form.

Example:
    >>> crossmesh.tensors_of(crossmesh.parse_config(config_text)) == catalog
    True
)");
  m.def(
      "expert_form_of",
      [](const ModelConfig& config, const CatalogLike& catalog) {
        return word_of(expert_form_of(config, catalog_of(catalog)));
      },
      "config"_a, "catalog"_a,
      R"(Returns how a checkpoint holds the experts of a layer: `"each"` or `"stacked"`.

Raises:
    crossmesh.Error: mismatch, naming tensors: in neither form, or in both.

Example:
    >>> crossmesh.expert_form_of(config, catalog)
    'each'
)");
}

void bind_lay_out(nb::module_& m) {
  m.def(
      "lay_out",
      [](const ModelConfig& config, const std::string& spec, const Word<ExpertForm>& expert_form,
         const std::optional<DTypeOrName>& parameter_dtype,
         std::vector<std::vector<int>> expert_of_slot) {
        return lay_out(family_of(config, expert_form.get()), config, parse_spec(spec),
                       options_of(parameter_dtype, std::move(expert_of_slot)));
      },
      "config"_a, "spec"_a, nb::kw_only(), "expert_form"_a = "each",
      "parameter_dtype"_a = nb::none(), "expert_of_slot"_a = std::vector<std::vector<int>>(),
      R"(Returns the layout of the serving side of a config, with no checkpoint at hand.

Args:
    config: Of the model.
    spec: `axis=size,...`, major to minor, of the axes `replicas`, `pp`, `dp` and `tp`, perhaps
        with `experts=linear` or `experts=round_robin`: `"replicas=2,tp=4"` is eight ranks.
    expert_form: As for `tensors_of`.
    parameter_dtype: Of what is neither quantised nor the bias of a router; the config's if None.
    expert_of_slot: The expert of every slot of an instance, rank after rank; one row for all
        layers that have experts, or one for each.

Raises:
    crossmesh.Error: invalid_argument: an axis is unknown, or slots do not fit; mismatch: tp does
        not divide what it cuts, naming both numbers; unsupported: a cut inside a block of scales.

Source: fused and stacked parameters, KV replication, vocabulary padding, stages and expert
placement as vLLM 0.32 lays them.

Example:
    >>> crossmesh.lay_out(config, "tp=2")
    Layout(ranks=2, tensors=35, parameters=23, classes=10)
)");
}

void bind_family(nb::module_& m) {
  m.def(
      "family",
      [](const ModelConfig& config, const CatalogLike& catalog, const std::string& spec,
         const std::optional<DTypeOrName>& parameter_dtype,
         std::vector<std::vector<int>> expert_of_slot) {
        const ExpertForm form = expert_form_of(config, catalog_of(catalog));
        return lay_out(family_of(config, form), config, parse_spec(spec),
                       options_of(parameter_dtype, std::move(expert_of_slot)));
      },
      "config"_a, "catalog"_a, "spec"_a, nb::kw_only(), "parameter_dtype"_a = nb::none(),
      "expert_of_slot"_a = std::vector<std::vector<int>>(),
      R"(Returns the layout of the serving side that takes its weights from this catalog.

It is `lay_out` in the form in which the catalog holds experts.

Args:
    config: Of the model; `read_config` reads it.
    catalog: A catalog, or an opened checkpoint.
    spec: As for `lay_out`.
    parameter_dtype: As for `lay_out`.
    expert_of_slot: As for `lay_out`.

Raises:
    crossmesh.Error: as lay_out; mismatch, naming tensors: experts are held in neither form.

Example:
    >>> target = crossmesh.family(config, catalog, "tp=2")
    >>> target.local_shape(0, "model.layers.0.self_attn.qkv_proj.weight")
    (40, 40)
)");
}

}  // namespace

void bind_target(nb::module_& m) {
  bind_config(m);
  bind_forms(m);
  bind_lay_out(m);
  bind_family(m);
}

}  // namespace crossmesh::python
