"""The compiled half of crossmesh; use the names of `crossmesh`."""

from collections.abc import Callable, Iterator, Sequence
import datetime
import enum
import os
import pathlib
from typing import Any, Literal

import numpy.typing


class DType(enum.Enum):
    """The type of a tensor's elements."""

    boolean = 0

    u8 = 1

    i8 = 2

    u16 = 3

    i16 = 4

    u32 = 5

    i32 = 6

    u64 = 7

    i64 = 8

    f4 = 9

    f6_e2m3 = 10

    f6_e3m2 = 11

    f8_e4m3 = 12

    f8_e5m2 = 13

    f8_e8m0 = 14

    f8_e4m3fnuz = 15

    f8_e5m2fnuz = 16

    f16 = 17

    bf16 = 18

    f32 = 19

    f64 = 20

    c64 = 21

def dtype_from_name(name: str) -> DType | None:
    """
    Reads a safetensors name (`BF16`), or torch's (`bfloat16`, `torch.float16`).

    Returns:
        The dtype, or None where no dtype has this name.

    Example:
        >>> crossmesh.dtype_from_name("BF16") == crossmesh.dtype_from_name("torch.bfloat16")
        True
    """

def name_of(dtype: DType) -> str:
    """
    Returns the name of a dtype in a safetensors header.

    Example:
        >>> crossmesh.name_of(crossmesh.DType.f8_e4m3)
        'F8_E4M3'
    """

def bit_size(dtype: DType) -> int:
    """
    Returns the bits of one element: 4 for `f4`, 6 for the `f6` types.

    Example:
        >>> crossmesh.bit_size(crossmesh.DType.bf16)
        16
    """

def is_castable(source: DType | str, target: DType | str) -> bool:
    """
    Whether an update converts elements of `source` into elements of `target`.

    It does between any two of F32, F16 and BF16, as `torch.Tensor.copy_` does, bit for bit.

    Raises:
        crossmesh.Error: invalid_argument: a name is not a dtype's.

    Example:
        >>> crossmesh.is_castable("F32", "BF16"), crossmesh.is_castable("F32", "I8")
        (True, False)
    """

class Box:
    """The elements i of an index space with origin <= i < origin + shape."""

    @property
    def origin(self) -> tuple[int, ...]:
        """The first index, by dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, by dimension."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class View:
    """
    Where a box's elements lie: element i, from the origin of the box, at `offset + sum(i[d] * strides[d])`. In elements.
    """

    @property
    def offset(self) -> int:
        """Elements from the start of the storage."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours, by dimension."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Space:
    """A tensor's index space, some of its dimensions split into factors."""

    @property
    def factors(self) -> tuple[int, ...]:
        """All factors, dimension by dimension, outermost first."""

    @property
    def factor_count(self) -> tuple[int, ...]:
        """Factors of each dimension of the tensor."""

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The product of each dimension's factors."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class StridedRegion:
    """A strided part of a flat storage."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, by dimension."""

    @property
    def view(self) -> View:
        """Where it lies."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class TensorInfo:
    """
    A tensor's name, dtype and whole shape.

    Example:
        >>> crossmesh.TensorInfo("model.norm.weight", "BF16", [64])
        TensorInfo(name=model.norm.weight, dtype=BF16, shape=[64])
    """

    def __init__(self, name: str, dtype: DType | str, shape: Sequence[int]) -> None:
        """
        Raises:
            crossmesh.Error: invalid_argument: no such dtype, a negative or too large shape, or a tensor
                that does not end on a byte.
        """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def element_count(self) -> int:
        """Elements."""

    @property
    def byte_count(self) -> int:
        """Bytes of the packed tensor."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Catalog:
    """
    Which tensors a checkpoint holds, in order.

    Example:
        >>> catalog = crossmesh.Catalog([crossmesh.TensorInfo("w", "F32", [2, 3])])
        >>> print(catalog.explain(), end="")
        w  F32  [2, 3]
        1 tensors, 6 elements, 24 bytes
    """

    def __init__(self, tensors: Sequence[TensorInfo]) -> None:
        """
        Raises:
            crossmesh.Error: invalid_argument: a name occurs twice, or a tensor cannot be.
        """

    @property
    def tensors(self) -> list[TensorInfo]:
        """All tensors, in the order of their bytes."""

    @property
    def names(self) -> list[str]:
        """Their names."""

    @property
    def byte_count(self) -> int:
        """Bytes of all packed tensors together."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[TensorInfo]: ...

    def __contains__(self, arg: str, /) -> bool: ...

    def __getitem__(self, name: str) -> TensorInfo:
        """
        Raises:
            crossmesh.Error: invalid_argument: there is no such tensor.
        """

    def explain(self) -> str:
        """Returns a stable text: a line for each tensor, then the totals."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class CheckpointFile:
    """One file of a checkpoint."""

    @property
    def path(self) -> pathlib.Path: ...

    @property
    def bytes(self) -> int:
        """Its size."""

    @property
    def tensor_count(self) -> int: ...

    @property
    def metadata(self) -> dict[str, str]:
        """What stands under `__metadata__`."""

    def __repr__(self) -> str: ...

class Checkpoint:
    """
    A checkpoint on disk, opened.

    Its files are mapped; of their data nothing is read before it is looked at. What `bytes`, `numpy`
    and `dlpack` return are read-only views of the mapping, which they keep alive.

    Example:
        >>> checkpoint = crossmesh.read(folder)
        >>> checkpoint.catalog["model.norm.weight"].shape
        (40,)
        >>> len(checkpoint.bytes("model.norm.weight"))
        80
    """

    @property
    def catalog(self) -> Catalog:
        """Which tensors there are, file after file."""

    @property
    def files(self) -> list[CheckpointFile]:
        """The files, in order."""

    def __contains__(self, arg: str, /) -> bool: ...

    def bytes(self, name: str) -> memoryview:
        """
        Returns the packed bytes of a tensor.

        Raises:
            crossmesh.Error: invalid_argument: there is no such tensor.
        """

    def numpy(self, name: str) -> numpy.typing.NDArray[Any]:
        """
        Returns a tensor as a numpy.ndarray.

        Of dtypes that NumPy lacks, unsigned integers hold the bits.

        Raises:
            crossmesh.Error: invalid_argument: there is no such tensor; unsupported: its elements do not
                fill whole bytes.
        """

    def dlpack(self, name: str) -> Any:
        """
        Returns a tensor for `from_dlpack` of any library, in its own dtype.

        Raises:
            crossmesh.Error: as numpy.
        """

    def explain(self) -> str:
        """Returns the text of its catalog."""

    def __repr__(self) -> str: ...

def read(path: str | os.PathLike[str]) -> Checkpoint:
    """
    Opens a checkpoint: a `.safetensors` file, an index of several, or a folder.

    Raises:
        crossmesh.Error: invalid_argument: there is no checkpoint, or there are several indexes;
            corrupt_file: a file is not what its format says; io_failed: the system refuses.

    Example:
        >>> crossmesh.read(folder).catalog
        Catalog(tensors=35, bytes=63728)
    """

def find_config(path: str | os.PathLike[str]) -> pathlib.Path | None:
    """
    Returns the `config.json` in the folder of a checkpoint, or None.

    `path` is the folder, or a file in it.
    """

class Piece:
    """A box of a tensor, and where it lies in a parameter."""

    @property
    def box(self) -> Box: ...

    @property
    def view(self) -> View: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class LayoutClass:
    """Geometry over roles."""

    @property
    def space(self) -> Space: ...

    @property
    def dtype(self) -> DType:
        """Of the elements as they lie; views count in it."""

    @property
    def pieces_of_role(self) -> list[list[Piece]]: ...

    def fingerprint(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Binding:
    """Which ranks play which role."""

    @property
    def role_of_rank(self) -> list[int]:
        """By rank; -1 where it has no part."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Reserve:
    """A region of a parameter that no piece fills."""

    @property
    def kind(self) -> str:
        """
        `fill`: holds a constant; `kept`: no tensor feeds it; `derived`: the engine computes it.
        """

    @property
    def role(self) -> int: ...

    @property
    def region(self) -> StridedRegion: ...

    @property
    def value_bits(self) -> int:
        """Of a fill: one element."""

    @property
    def reason(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class ParameterClass:
    """The shape of a parameter on each role."""

    @property
    def dtype(self) -> DType: ...

    @property
    def shape_of_role(self) -> list[tuple[int, ...]]: ...

    @property
    def strides_of_role(self) -> list[tuple[int, ...]]:
        """In elements."""

    @property
    def reserves(self) -> list[Reserve]: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Parameter:
    """A name that some ranks have memory for."""

    @property
    def name(self) -> str: ...

    @property
    def parameter_class(self) -> int: ...

    @property
    def binding(self) -> int: ...

    @property
    def storage(self) -> int:
        """The parameter whose memory it is; often itself."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Instance:
    """One tensor's part in one parameter."""

    @property
    def tensor(self) -> int: ...

    @property
    def parameter(self) -> int: ...

    @property
    def layout_class(self) -> int: ...

    @property
    def binding(self) -> int: ...

    @property
    def offset(self) -> int:
        """Elements, added to every view of the class."""

    @property
    def opaque_reason(self) -> int:
        """
        Why it takes the fallback, an index of `reasons`; -1 where it does not.
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Unused:
    """A tensor that a side does not want, and why."""

    @property
    def name(self) -> str: ...

    @property
    def why(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class PlacedPiece:
    """A piece in its parameter."""

    @property
    def instance(self) -> int: ...

    @property
    def parameter(self) -> int: ...

    @property
    def piece(self) -> Piece: ...

    def __repr__(self) -> str: ...

class Layout:
    """
    Who holds which elements of which tensor, and how they lie.

    `shard` makes the trainers', `family` and `lay_out` the engines'. It is a value: nothing changes it.

    Example:
        >>> layout = crossmesh.shard(catalog, "fsdp=2")
        >>> layout.rank_count, layout.local_shape(0, "model.norm.weight")
        (2, (20,))
    """

    @property
    def model(self) -> str:
        """Which model of a job it is of."""

    @property
    def rank_count(self) -> int: ...

    @property
    def replica_of_rank(self) -> list[int]:
        """The commit unit of each rank."""

    @property
    def tensors(self) -> list[TensorInfo]:
        """That this side speaks of, with whole shapes."""

    @property
    def classes(self) -> list[LayoutClass]: ...

    @property
    def bindings(self) -> list[Binding]: ...

    @property
    def parameter_classes(self) -> list[ParameterClass]: ...

    @property
    def parameters(self) -> list[Parameter]: ...

    @property
    def instances(self) -> list[Instance]: ...

    @property
    def reasons(self) -> list[str]: ...

    @property
    def unused(self) -> list[Unused]:
        """Tensors that this side does not want, and why."""

    def pieces(self, rank: int, tensor: int | str) -> list[PlacedPiece]:
        """
        Returns what a rank holds of a tensor, and where in its parameters it lies.

        Args:
            rank: Of this side, from 0.
            tensor: A name, or an index of `tensors`.

        Raises:
            crossmesh.Error: invalid_argument: there is no such rank or tensor.

        Example:
            >>> crossmesh.shard(catalog, "fsdp=2").pieces(1, "model.norm.weight")
            [PlacedPiece(parameter=33, box=[20:40], offset=0, strides=[1])]
        """

    def has_parameter(self, rank: int, parameter: int | str) -> bool:
        """Whether a rank has memory for a parameter (a name or index)."""

    def local_shape(self, rank: int, parameter: int | str) -> tuple[int, ...]:
        """
        Returns the shape of a parameter on a rank, in elements.

        Raises:
            crossmesh.Error: invalid_argument: there is no such rank or parameter, or not there.
        """

    def local_strides(self, rank: int, parameter: int | str) -> tuple[int, ...]:
        """
        Returns the strides of a parameter on a rank, in elements.

        Raises:
            crossmesh.Error: as local_shape.
        """

    def parameter_bytes(self, rank: int, parameter: int | str) -> int:
        """
        Returns the bytes of a parameter's storage on a rank.

        Raises:
            crossmesh.Error: as local_shape; unsupported: it does not end on a byte.
        """

    def mark_opaque(self, pattern: str, reason: str) -> Layout:
        """
        Returns the layout with the tensors that `pattern` matches given to the fallback.

        Each goes whole to the engine's own loader; `reason` says why. In the pattern `*` matches any text.

        Raises:
            crossmesh.Error: invalid_argument: no wanted tensor matches.
        """

    def fingerprint(self) -> str:
        """
        Returns 32 hexadecimal digits: equal for equal layouts, on any machine.
        """

    def explain(self) -> str:
        """
        Returns a stable text: ranks, classes with boxes and views, then instances.
        """

    def to_json(self) -> str:
        """Returns the layout as JSON of the schema in docs/layout.schema.json."""

    @staticmethod
    def from_json(text: str) -> Layout:
        """
        Reads what `to_json`, or another program, wrote. It is checked whole.

        Raises:
            crossmesh.Error: corrupt_file: it is not JSON, or no layout; mismatch: another version of the
                schema; limit_exceeded: too many ranks.

        Example:
            >>> layout = crossmesh.shard(catalog, "fsdp=2")
            >>> crossmesh.Layout.from_json(layout.to_json()) == layout
            True
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

def shard(catalog: Catalog | Checkpoint, spec: str) -> Layout:
    """
    Returns the layout of the training side: every tensor of `catalog` split over a mesh.

    Shapes: the boxes of one tensor tile its whole shape over the ranks of its stage and coordinate;
    ranks past the end hold none. Each rank's shard is one contiguous parameter of the tensor's name.

    Args:
        catalog: A catalog, or an opened checkpoint.
        spec: `axis=size,...`, major to minor, of the axes `pp`, `dp_replicate`, `fsdp`, `ep`, `etp`
            and `tp`: `"fsdp=2,tp=2"` is four ranks.

    Raises:
        crossmesh.Error: invalid_argument: an axis is unknown, repeated or not a size; mismatch: more
            stages than layers; unsupported: a cut inside a byte.

    Source: uneven extents follow torch.chunk; the order of tp and fsdp follows torch's FSDP over TP.

    Example:
        >>> crossmesh.shard(catalog, "fsdp=2")
        Layout(ranks=2, tensors=35, parameters=35, classes=8)
    """

class ModelConfig:
    """
    The facts of a config.json that decide how an engine lays a model. Sizes are in elements.
    """

    @property
    def architecture(self) -> str: ...

    @property
    def model_type(self) -> str: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def hidden(self) -> int: ...

    @property
    def intermediate(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...

    @property
    def vocab(self) -> int: ...

    @property
    def tied_embeddings(self) -> bool: ...

    @property
    def attention_bias(self) -> bool: ...

    @property
    def mlp_bias(self) -> bool: ...

    @property
    def experts(self) -> int:
        """0: every layer is dense."""

    @property
    def expert_intermediate(self) -> int: ...

    @property
    def shared_experts(self) -> int: ...

    @property
    def expert_groups(self) -> int: ...

    @property
    def router_bias(self) -> bool: ...

    @property
    def sparse_layer(self) -> list[bool]:
        """Whether each layer has experts."""

    @property
    def prediction_layers(self) -> int: ...

    @property
    def query_rank(self) -> int: ...

    @property
    def latent(self) -> int:
        """0: there is no latent attention."""

    @property
    def plain_head_size(self) -> int: ...

    @property
    def rotary_head_size(self) -> int: ...

    @property
    def value_head_size(self) -> int: ...

    @property
    def scale_block(self) -> int:
        """0: it is not quantised."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

def parse_config(json_text: str) -> ModelConfig:
    """
    Reads the text of a Hugging Face config.json.

    Raises:
        crossmesh.Error: corrupt_file: it is no config, or lacks something; unsupported: an unknown
            family, dtype or quantisation; mismatch: impossible numbers.

    Example:
        >>> crossmesh.parse_config(config_text)
        ModelConfig(model_type=llama, layers=2, hidden=40, heads=4, dtype=BF16)
    """

def families() -> list[str]:
    """
    Returns the families of models that are known, by model_type.

    Example:
        >>> "qwen3" in crossmesh.families()
        True
    """

def tensors_of(config: ModelConfig, expert_form: Literal['each', 'stacked'] = 'each') -> Catalog:
    """
    Returns the catalog that a checkpoint of this config has.

    Args:
        config: Of the model.
        expert_form: `"each"`: a matrix for each projection of each expert; `"stacked"`: two tensors
            for all experts of a layer.

    Raises:
        crossmesh.Error: unsupported: the family is not known in this form.

    Example:
        >>> crossmesh.tensors_of(crossmesh.parse_config(config_text)) == catalog
        True
    """

def expert_form_of(config: ModelConfig, catalog: Catalog | Checkpoint) -> str:
    """
    Returns how a checkpoint holds the experts of a layer: `"each"` or `"stacked"`.

    Raises:
        crossmesh.Error: mismatch, naming tensors: in neither form, or in both.

    Example:
        >>> crossmesh.expert_form_of(config, catalog)
        'each'
    """

def lay_out(config: ModelConfig, spec: str, *, expert_form: Literal['each', 'stacked'] = 'each', parameter_dtype: DType | str | None = None, expert_of_slot: Sequence[Sequence[int]] = []) -> Layout:
    """
    Returns the layout of the serving side of a config, with no checkpoint at hand.

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
    """

def family(config: ModelConfig, catalog: Catalog | Checkpoint, spec: str, *, parameter_dtype: DType | str | None = None, expert_of_slot: Sequence[Sequence[int]] = []) -> Layout:
    """
    Returns the layout of the serving side that takes its weights from this catalog.

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
    """

class ChainBook:
    """
    What loaders do to tensors before they copy them.

    A chain is the number of a step; its record reaches back to a whole tensor.

    Example:
        >>> book = crossmesh.ChainBook()
        >>> rows = book.apply(book.start("BF16", (8, 6)), "narrow", (0, 4, 4), {})
        >>> book.geometry(rows)[1:], book.calls(rows)
        (((4, 6), (6, 1), 24), '[["narrow",[0,4,4],{}]]')
    """

    def __init__(self) -> None: ...

    def start(self, dtype: DType | str, shape: tuple[int, ...]) -> int:
        """Returns the chain of a whole tensor."""

    def apply(self, chain: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """
        Returns the chain after one more call.

        Raises:
            crossmesh.Error: invalid_argument: torch refuses the call; unsupported: an argument cannot be
                recorded.
        """

    def apply_several(self, chain: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Returns the chains after a call that yields several tensors, in order."""

    def geometry(self, chain: int) -> tuple[DType, tuple[int, ...], tuple[int, ...], int]:
        """Returns dtype, sizes, strides and offset, in elements."""

    def layers(self, chain: int) -> list[tuple[DType, tuple[int, ...], tuple[int, ...], int]]:
        """Returns the view that each copy read, in order, then the chain's own."""

    def has_copied(self, chain: int) -> bool:
        """
        Whether a call had to copy, so that the geometry is of another storage.
        """

    def calls(self, chain: int) -> str:
        """Returns the recorded calls as JSON."""

    def wire_key(self, tensor_name: str, chain: int) -> str:
        """Returns the identity of a slice on the wire."""

    def identity(self, chain: int) -> str:
        """Returns what is equal for chains that show equal elements."""

    @property
    def chain_count(self) -> int: ...

    @property
    def geometry_count(self) -> int: ...

    def __repr__(self) -> str: ...

class TargetGeometry:
    """What a copy writes, but for where."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> None: ...

class BakeEvent:
    """One write of a loader to a storage; see BakeRecord."""

    @property
    def kind(self) -> str: ...

    @property
    def tensor(self) -> int: ...

    @property
    def storage(self) -> int: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]: ...

    @property
    def offset(self) -> int: ...

    @property
    def source(self) -> int: ...

    @property
    def chain(self) -> int: ...

    @property
    def value_bits(self) -> int: ...

    @property
    def tensors(self) -> list[int]: ...

    @property
    def reason(self) -> str: ...

class BakeRecord:
    """What one run of a loader did, in order."""

    def __init__(self) -> None: ...

    def add_tensor(self, name: str, dtype: DType, shape: Sequence[int]) -> None: ...

    def add_parameter(self, name: str, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], storage: int, offset: int, is_buffer: bool) -> None: ...

    def copy(self, tensor: int, source: int, chain: int, storage: int, target: TargetGeometry, offset: int) -> None: ...

    def fill(self, tensor: int, value_bits: int, storage: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None: ...

    def write(self, tensor: int, tensors: Sequence[int], reason: str, storage: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None: ...

    def refuse(self, tensor: int, reason: str) -> None: ...

    @property
    def events(self) -> list[BakeEvent]: ...

class BakeResult:
    """A record's layout, and what became of each tensor."""

    @property
    def layout(self) -> Layout: ...

    @property
    def fates(self) -> list[str]: ...

    def reason_of(self, tensor: int) -> str:
        """Why a tensor is opaque, or by what it is overwritten."""

    @property
    def needs_loader(self) -> bool: ...

    @property
    def tensor_names(self) -> list[str]: ...

    @property
    def parameter_names(self) -> list[str]: ...

    @property
    def reserves(self) -> list[tuple[str, str, tuple[tuple[int, ...], tuple[int, ...], int], int, str]]: ...

def lay_out_record(record: BakeRecord, book: ChainBook) -> BakeResult:
    """Returns the layout that does what a recorded load did."""

def merge_layouts(layout_of_rank: Sequence[Layout]) -> Layout:
    """Returns the layout of all ranks, from the layout of each."""

class Putter:
    """One rank's part of a layout, with the memory that it writes."""

    def __init__(self, layout: Layout, rank: int, parameters: Sequence[int]) -> None: ...

    def put(self, tensor: int, dtype: DType, address: int) -> None:
        """
        Writes the pieces of a whole tensor that lies at `address`, in row-major order.
        """

    def put_fills(self) -> None:
        """Writes the constants of all parameters."""

class Copy:
    """
    One box of a tensor, as it lies on a source role and on a target role. In elements; offsets from the two instances' places.
    """

    @property
    def source_role(self) -> int: ...

    @property
    def target_role(self) -> int: ...

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements, by dimension."""

    @property
    def source(self) -> View: ...

    @property
    def target(self) -> View: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class PlanClass:
    """A source class met with a target class."""

    @property
    def source_class(self) -> int: ...

    @property
    def target_class(self) -> int: ...

    @property
    def conversion(self) -> str: ...

    @property
    def copies(self) -> list[Copy]: ...

    @property
    def first_copy_of_target_role(self) -> list[int]: ...

    @property
    def unique_elements(self) -> int:
        """Distinct elements that some target role wants."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class PlanInstance:
    """The source instance that feeds a target instance."""

    @property
    def source_instance(self) -> int: ...

    @property
    def target_instance(self) -> int: ...

    @property
    def plan_class(self) -> int:
        """-1 when opaque."""

    @property
    def opaque(self) -> bool:
        """The whole tensor goes to the engine's loader."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Plan:
    """
    Which elements go from which piece to which piece, proven.

    Example:
        >>> plan = crossmesh.compile(source, target)
        >>> plan.copy_count, plan.unused
        (98, [])
    """

    @property
    def source(self) -> Layout: ...

    @property
    def target(self) -> Layout: ...

    @property
    def classes(self) -> list[PlanClass]: ...

    @property
    def instances(self) -> list[PlanInstance]:
        """In the order of the target's instances."""

    @property
    def unused(self) -> list[Unused]:
        """Tensors that no engine wants, and why."""

    @property
    def copy_count(self) -> int:
        """Boxes copied, over all target ranks."""

    def fingerprint(self) -> str:
        """Returns 32 hexadecimal digits: equal for equal plans, on any machine."""

    def explain(self) -> str:
        """
        Returns a stable text: totals, classes with their copies, then instances.
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

def compile(source: Layout, target: Layout) -> Plan:
    """
    Matches the two sides' tensors by name, and proves the result.

    Every element of every target parameter is a piece, a fill, opaque, kept or derived, exactly once;
    every copy reads what its source holds; every wanted tensor has a holder.

    Raises:
        crossmesh.Error: mismatch: a wanted tensor is missing or has another shape, an element is
            covered twice or never, or a box has no holder, each named; unsupported: dtypes that are
            not converted, or too many boxes; invalid_argument: the plan is empty.

    Example:
        >>> crossmesh.compile(source, target)
        Plan(source_ranks=2, target_ranks=2, classes=10, instances=35, copies=98)
    """

class ScheduleOptions:
    """What `arrange` was asked for."""

    @property
    def route(self) -> str: ...

    @property
    def staging_bytes_max(self) -> int:
        """Per source rank."""

    @property
    def fallback_bytes_max(self) -> int:
        """Per target rank."""

    def __repr__(self) -> str: ...

class Group:
    """Plan instances that are moved and released together."""

    @property
    def name(self) -> str: ...

    @property
    def first(self) -> int:
        """Into the schedule's `order`."""

    @property
    def last(self) -> int:
        """One past."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Step:
    """
    One copy that a rank gives or takes. In elements; offsets from the start of the parameters.
    """

    @property
    def peer(self) -> int:
        """The rank on the other side."""

    @property
    def instance(self) -> int:
        """Of the plan."""

    @property
    def source_parameter(self) -> int: ...

    @property
    def target_parameter(self) -> int: ...

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements, by dimension."""

    @property
    def source(self) -> View: ...

    @property
    def target(self) -> View: ...

    @property
    def whole_tensor(self) -> bool:
        """The target is the buffer of an opaque tensor, for the engine's loader."""

    def __repr__(self) -> str: ...

class Totals:
    """A schedule's sums, in bytes of the source's dtypes."""

    @property
    def bytes_model(self) -> int:
        """One copy of the checkpoint."""

    @property
    def bytes_unique(self) -> int:
        """Distinct wanted bytes."""

    @property
    def bytes_needed(self) -> int:
        """Over all target ranks."""

    @property
    def bytes_fallback(self) -> int:
        """Of these, by the fallback."""

    @property
    def egress_bytes(self) -> list[int]:
        """By source rank."""

    @property
    def ingress_bytes(self) -> list[int]:
        """By target rank."""

    @property
    def copies(self) -> int:
        """Steps, over all target ranks."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Schedule:
    """
    From which holder, in which order, within which memory.

    Example:
        >>> schedule = crossmesh.arrange(plan)
        >>> [group.name for group in schedule.groups]
        ['before', 'model.layers.0', 'model.layers.1', 'after']
        >>> schedule.totals().bytes_needed
        64448
    """

    @property
    def plan(self) -> Plan: ...

    @property
    def options(self) -> ScheduleOptions: ...

    @property
    def order(self) -> list[int]:
        """Plan instances, group by group."""

    @property
    def groups(self) -> list[Group]: ...

    @property
    def staging_slot_bytes(self) -> int:
        """0 where nothing is staged."""

    @property
    def staging_slot_count(self) -> int: ...

    def totals(self) -> Totals:
        """Returns the sums over every rank's part."""

    def expand(self, side: Literal['source', 'target'], rank: int) -> list[list[Step]]:
        """
        Returns the steps of one rank, group by group.

        Args:
            side: `"source"` or `"target"`.
            rank: Of that side, from 0.

        Raises:
            crossmesh.Error: invalid_argument: there is no such side or rank.
        """

    def fingerprint(self) -> str:
        """
        Returns 32 hexadecimal digits: equal for equal schedules, on any machine.
        """

    def explain(self) -> str:
        """Returns a stable text."""

    def __repr__(self) -> str: ...

def arrange(plan: Plan, *, route: Literal['direct', 'packed'] = 'direct', staging_bytes_max: int = 67108864, fallback_bytes_max: int = 4294967296) -> Schedule:
    """
    Chooses holders, an order and bounds for a plan.

    Args:
        plan: From `compile`.
        route: `"direct"`: straight from the source's parameters; `"packed"`: through bounded staging.
        staging_bytes_max: Bytes, per source rank.
        fallback_bytes_max: Bytes, per target rank; the largest opaque tensor must fit.

    Raises:
        crossmesh.Error: limit_exceeded, naming the bound, the tensor and the number that would do;
            invalid_argument: there is no such route.

    Example:
        >>> crossmesh.arrange(plan, route="packed", staging_bytes_max=4096).staging_slot_bytes
        2048
    """

class Fault:
    """One wrong thing in a plan."""

    @property
    def what(self) -> str:
        """One line."""

    @property
    def tensor(self) -> str: ...

    @property
    def parameter(self) -> str: ...

    @property
    def rank(self) -> int:
        """A target rank, or -1."""

    @property
    def facts(self) -> str:
        """Boxes and numbers."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Verdict:
    """Whether a plan moves the right bytes."""

    @property
    def faults(self) -> list[Fault]:
        """Twenty at most."""

    @property
    def checked_copies(self) -> int: ...

    @property
    def right(self) -> bool:
        """Whether there is no fault."""

    def explain(self) -> str:
        """Returns a stable text."""

    def __repr__(self) -> str: ...

def verify(plan: Plan) -> Verdict:
    """
    Checks a plan against its two layouts, by other code than the compiler's.

    Example:
        >>> crossmesh.verify(plan)
        Verdict(right=true, checked_copies=25, faults=0)
    """

class SharedMemory:
    """
    Zeroed memory in a memfd, which engines map. A buffer of bytes: `numpy.frombuffer(memoryview(shared), dtype)` is a view of it.
    """

    @property
    def bytes(self) -> int: ...

    @property
    def fd(self) -> int: ...

    def __len__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __repr__(self) -> str: ...

def reserve_shared(label: str, bytes: int) -> SharedMemory:
    """
    Returns zeroed memory that other processes map, all of it there.

    Args:
        label: Is shown in /proc/PID/maps.
        bytes: Its size.

    Raises:
        crossmesh.Error: invalid_argument: a negative size; out_of_memory: the system refuses.

    Example:
        >>> shared = crossmesh.reserve_shared("weights", 4)
        >>> memoryview(shared)[1] = 7
        >>> bytes(shared)
        b'\\x00\\x07\\x00\\x00'
    """

class ParameterArray:
    """
    A parameter by its address, for libraries whose dtypes do not cross otherwise.
    """

    def __init__(self, data: int, dtype: DType | str, shape: tuple[int, ...], strides: tuple[int, ...], owner: object, is_writable: bool = True) -> None:
        """
        Args:
            data: The address of the first element. What lies there must be the caller's.
            dtype: A DType or its name.
            shape: In elements.
            strides: In elements.
            owner: What keeps the memory alive; it is held as long as the memory is used.
            is_writable: Whether an engine may take into it.

        Raises:
            crossmesh.Error: invalid_argument: no such dtype, or shape and strides differ in length.
        """

    def __repr__(self) -> str: ...

class ParameterMemory:
    """
    Where the parameters of one rank lie.

    An array is anything that lies in the memory of the processor and speaks DLPack or the buffer
    protocol, or a `ParameterArray`. It is used where it is, never copied, and kept alive; of dtypes
    that its library lacks, unsigned integers of as many bits hold the bits.

    Example:
        >>> import numpy
        >>> layout = crossmesh.lay_out(config, "tp=2")
        >>> arrays = {
        ...     parameter.name: numpy.zeros(layout.local_shape(0, parameter.name), numpy.uint16)
        ...     for parameter in layout.parameters
        ... }
        >>> crossmesh.ParameterMemory(layout, 0, arrays)
        ParameterMemory(rank=0, parameters=23, bytes=34384, buffers=23)
    """

    def __init__(self, layout: Layout, rank: int, arrays: dict[str, Any], *, enclosing: Sequence[SharedMemory] = []) -> None:
        """
        Args:
            layout: Of the rank's side.
            rank: Of that side, from 0.
            arrays: An array for each parameter of the rank; of tied ones the owner's name is enough.
            enclosing: Shared memory that arrays may lie in. A trainer's engines map it.

        Raises:
            crossmesh.Error: invalid_argument: a parameter has no array, or an array no parameter;
                mismatch: another dtype, shape or strides than the layout's.
            TypeError: a value is no array, or lies on a device.
        """

    @staticmethod
    def reserve(layout: Layout, rank: int, label: str = 'crossmesh') -> ParameterMemory:
        """
        Reserves shared memory for all parameters of a rank, side by side.

        Args:
            layout: Of the rank's side.
            rank: Of that side, from 0.
            label: Is shown in /proc/PID/maps.

        Raises:
            crossmesh.Error: invalid_argument: there is no such rank; out_of_memory: the system refuses;
                unsupported: a parameter does not end on a byte.

        Example:
            >>> memory = crossmesh.ParameterMemory.reserve(crossmesh.shard(catalog, "fsdp=2"), 0)
            >>> memory.numpy("model.norm.weight")[:] = 7
        """

    @property
    def rank(self) -> int:
        """Of its side."""

    @property
    def names(self) -> list[str]:
        """The parameters that the rank has."""

    def numpy(self, name: str) -> numpy.typing.NDArray[Any]:
        """
        Returns a parameter as a numpy.ndarray.

        Of dtypes that NumPy lacks, unsigned integers hold the bits.

        Raises:
            crossmesh.Error: invalid_argument: the rank has no such parameter.
        """

    def dlpack(self, name: str) -> Any:
        """
        Returns a parameter for `from_dlpack` of any library, in its own dtype.

        Raises:
            crossmesh.Error: as numpy.
        """

    def __repr__(self) -> str: ...

class InprocHub:
    """Where the ranks of one process meet."""

    def __init__(self) -> None: ...

    def __repr__(self) -> str: ...

class Transport:
    """How a rank's bytes travel; a Session takes it."""

    @property
    def name(self) -> str: ...

    def __repr__(self) -> str: ...

class LinkFacts:
    """The way to a peer, as far as it was gone."""

    @property
    def way(self) -> str:
        """`local`, `pointer`, `memfd`, `attach`, `ring`, or several."""

    @property
    def same_host(self) -> bool: ...

    @property
    def bytes_pulled(self) -> int:
        """By this rank, of the target's bytes."""

    @property
    def bytes_per_second(self) -> float:
        """0 where it was not measured."""

    @property
    def why_not_attach(self) -> str:
        """Empty where it works."""

    def __repr__(self) -> str: ...

def make_inproc(hub: InprocHub, session_name: str, rank: int) -> Transport:
    """
    Returns the transport of a rank that is a thread of this process.

    Args:
        hub: The same object for all ranks; it is kept alive.
        session_name: 32 lower-case hexadecimal digits.
        rank: Among all ranks of the job.

    Raises:
        crossmesh.Error: invalid_argument: the rank is none, or is in the hub already; io_failed.

    Example:
        >>> crossmesh.make_inproc(crossmesh.InprocHub(), "0" * 32, 0)
        Transport(name=inproc)
    """

def make_shm(session_name: str, rank: int, *, way: Literal['automatic', 'memfd', 'attach', 'ring'] = 'automatic', copies_within_process: bool = True, ring_bytes: int = 4194304) -> Transport:
    """
    Returns the transport of a rank that is a process of this host.

    Args:
        session_name: 32 lower-case hexadecimal digits; no other session is let in.
        rank: Among all ranks of the job.
        way: `"automatic"`, or `"memfd"`, `"attach"` or `"ring"` alone; the same on every rank.
        copies_within_process: Whether ranks of one process copy where the memory is.
        ring_bytes: Of the ring for one peer.

    Raises:
        crossmesh.Error: invalid_argument: the session's name, the rank or the way is none;
            limit_exceeded: the ring is smaller than 16 KiB; io_failed.

    Example:
        >>> crossmesh.make_shm("0123456789abcdef" * 2, 0)
        Transport(name=shm)
    """

class EngineState:
    """What an engine rank serves."""

    @property
    def kind(self) -> str:
        """
        `whole`: every parameter at `version`; `torn`: the next full update mends it.
        """

    @property
    def version(self) -> int:
        """0: what it held before the first update."""

    def __repr__(self) -> str: ...

class UpdateReport:
    """What one rank moved in one update."""

    @property
    def version(self) -> int: ...

    @property
    def attempt(self) -> int:
        """Counts all tries of the session."""

    @property
    def epoch(self) -> int:
        """Counts who was lost and who came back."""

    @property
    def seconds(self) -> float:
        """On trainers: from the start to the last commit."""

    @property
    def bytes(self) -> int:
        """Source bytes that left or reached this rank."""

    @property
    def bytes_fallback(self) -> int: ...

    @property
    def staging_bytes_peak(self) -> int: ...

    @property
    def digest_seconds(self) -> float: ...

    @property
    def digest_bytes(self) -> int:
        """Of the targets' dtypes."""

    def as_dict(self) -> dict[str, int | float]:
        """Returns the fields by name."""

    def __repr__(self) -> str: ...

class Session:
    """
    One rank's part in a job.

    `join`, `agree`, then on trainers `update` and on engines `receive`, again and again, then `leave`.
    Every call that waits lets other Python threads run, and ends on Ctrl-C in the main thread. A
    session belongs to one thread. As a context manager it leaves where nothing was raised, and closes.

    Example:
        >>> import threading
        >>> hub, job = crossmesh.InprocHub(), "0123456789abcdef" * 2
        >>> source, target = crossmesh.shard(catalog, "fsdp=1"), crossmesh.lay_out(config, "tp=1")
        >>> def run(rank, layout):
        ...     memory = crossmesh.ParameterMemory.reserve(layout, 0)
        ...     with crossmesh.Session(session=job, source_count=1, target_count=1, rank=rank,
        ...                            transport=crossmesh.make_inproc(hub, job, rank)) as session:
        ...         session.join()
        ...         session.agree(memory)
        ...         if rank == 0:
        ...             session.update(1)
        ...         else:
        ...             session.receive()
        ...             print(session.state)
        >>> trainer = threading.Thread(target=run, args=(0, source))
        >>> trainer.start()
        >>> run(1, target)
        EngineState(kind=whole, version=1)
        >>> trainer.join()
    """

    def __init__(self, *, session: str, source_count: int, target_count: int, rank: int, transport: Transport, timeout: datetime.timedelta | float = 10.0, agree_timeout: datetime.timedelta | float = 60.0, ready_timeout: datetime.timedelta | float = 600.0, digest: Literal['off', 'sampled', 'on'] = 'sampled', is_return: bool = False, on_phase: Callable[[str], object] | None = None) -> None:
        """
        Args:
            session: 32 lower-case hexadecimal digits: the job's own name, such as
                `secrets.token_hex(16)` that a launcher gives to every rank.
            source_count: Trainer ranks, 0 to source_count - 1.
            target_count: Engine ranks, which follow.
            rank: This one, among all.
            transport: From `make_shm` or `make_inproc`; the session takes it.
            timeout: Seconds without any progress, in every wait.
            agree_timeout: Seconds, while ranks reserve their memory, if longer.
            ready_timeout: Seconds for work outside, such as a training step.
            digest: Which tensors an update checks: `"off"`, `"sampled"` or `"on"`; the same on every rank.
            is_return: Of an engine rank's process that was started again.
            on_phase: Called with the name of each phase that this rank enters.

        Raises:
            crossmesh.Error: invalid_argument: ranks and counts do not fit, or the transport was taken.
        """

    def join(self) -> None:
        """
        Blocks until all ranks are there. Every rank calls it.

        Raises:
            crossmesh.Error: timed_out, naming the ranks that did not come; invalid_argument: another
                process is this rank.
        """

    def agree(self, memory: ParameterMemory, *, route: Literal['direct', 'packed'] = 'direct', staging_bytes_max: int = 67108864, fallback_bytes_max: int = 4294967296, loader: Callable[[TensorInfo, memoryview], object] | None = None) -> None:
        """
        Plans, proves, and compares fingerprints with every rank. Every rank calls it.

        Args:
            memory: Of this rank, with its side's whole layout. It is kept until the session ends, and must
                stay where it is.
            route: As for `arrange`; the same on every rank, as the two bounds.
            staging_bytes_max: Bytes, per trainer rank.
            fallback_bytes_max: Bytes, per engine rank.
            loader: On engines, for opaque tensors: called with the tensor and its whole bytes, row-major,
                which are gone when it returns.

        Raises:
            crossmesh.Error: mismatch, naming the tensor, the ranks and both values; what `compile` and
                `arrange` raise. Nothing has moved then.
        """

    def check_replicas(self) -> None:
        """
        Compares what trainer ranks hold as replicas of each other. Every rank calls it.

        Raises:
            crossmesh.Error: mismatch, naming the tensor, two ranks and both digests.
        """

    def exchange(self, tag: str, value: Any) -> list[Any]:
        """
        Gives everyone's value to everyone, by rank. Every rank calls it.

        Args:
            tag: Names the point; the same on every rank.
            value: What JSON has.

        Raises:
            crossmesh.Error: mismatch: ranks are at different points.
        """

    def leave(self) -> None:
        """Ends this rank's part. Every rank calls it."""

    def digest(self, version: int) -> None:
        """
        Digests the weights of `version` before its update, on a trainer that has time for it.

        Raises:
            crossmesh.Error: invalid_argument: this rank is no trainer.
        """

    def update(self, version: int) -> UpdateReport:
        """
        Blocks until engines serve the weights of `version`, which are in place. On trainers.

        They may be overwritten afterwards. Ctrl-C ends it, here and on every rank.

        Raises:
            crossmesh.Error: invalid_argument: versions do not grow, or this rank is no trainer; aborted,
                peer_lost or timed_out, naming the rank and the phase; mismatch: what arrived is not what
                was given. `can_retry` tells whether every rank may try again.
        """

    def receive(self) -> UpdateReport:
        """
        Blocks until this rank serves the next version. On engines.

        Raises:
            crossmesh.Error: as update; `state` then tells what the parameters hold.
        """

    @property
    def schedule(self) -> Schedule:
        """What the ranks agreed on."""

    @property
    def state(self) -> EngineState:
        """What an engine rank serves."""

    @property
    def can_retry(self) -> bool:
        """Whether the last call failed and ended no more than an attempt."""

    @property
    def version(self) -> int:
        """
        The newest version that this rank knows to be everyone's; 0 before the first.
        """

    def links(self) -> dict[int, LinkFacts]:
        """Returns the way to each rank that this one exchanges weights with."""

    def close(self) -> None:
        """
        Ends the session without a word; peers take it for lost unless it has left.
        """

    def __enter__(self) -> Session: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __repr__(self) -> str: ...
